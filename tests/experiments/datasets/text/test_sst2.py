import os

import pytest
from experiments.datasets.text.sst2 import load_sst2

from tests.experiments.pretrain.tiny_reviews import write_reviews

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")


@pytest.fixture
def root(tmp_path):
    return write_reviews(tmp_path)


def test_splits(root):
    texts = load_sst2(data_root=root)
    assert {split: len(text) for split, text in texts.items()} == {"train": 24, "val": 6, "test": 6}
    for text in texts.values():
        assert text.labels.tolist() == [int(sentence.endswith("?")) for sentence in text.sentences]
        assert all(sentence == sentence.strip().lower() for sentence in text.sentences)
    assert not {*texts["val"].sentences} & {*texts["test"].sentences}


def test_fewer_training_sentences_are_the_same_ones(root):
    few, all_of_them = (load_sst2(train=size, data_root=root) for size in (5, 100))
    assert few["train"].sentences == all_of_them["train"].sentences[:5]
    assert few["test"].sentences == all_of_them["test"].sentences


@needs_data
def test_real_data():
    texts = load_sst2()
    assert {split: len(text) for split, text in texts.items()} == {"train": 10_000, "val": 436, "test": 436}
    assert "it 's a charming and often affecting journey ." in texts["val"].sentences
    for text in texts.values():
        assert 0.45 < text.labels.double().mean() < 0.6
