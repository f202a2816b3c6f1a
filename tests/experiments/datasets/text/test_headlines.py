"""Files of texts with headlines: what is read of them, what is left out, and what is wrong with them."""

import os
import re

import pytest

from experiments.datasets.text.headlines import load_headlines, plain_words, read_headlines
from tests.experiments.headlines.tiny_headlines import FILES, SIZES, entries, write_entries, write_texts

needs_data = pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
GOOD = {"id": 1, "text": "A b .", "summaries": ["a"]}


@pytest.fixture
def root(tmp_path):
    return write_texts(tmp_path / "data")


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_reading(tmp_path, name):
    found = read_headlines(write_entries(tmp_path / name, [GOOD, GOOD | {"summaries": ["X 12", "<unk> Y"], "date": 3}]))
    assert (found.texts, found.headlines, found.name) == (["a b ."] * 2, [("a",), ("x ##", "unk y")], name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Rates  fell\t3.5 %", "rates fell #.# %"), ("<UNK> said", "unk said"), ("UNK", "unk"), ("1987/88", "####/##")],
)
def test_plain_words(text, expected):
    assert plain_words(text) == expected
    assert plain_words(expected) == expected


def test_the_splits(root):
    found = load_headlines(data_root=root)
    assert {split: len(data) for split, data in found.items()} == SIZES
    assert list(found) == ["train", "val", "test"]
    assert found["train"].texts[0] == plain_words(entries()[0]["text"])
    assert any(len(some) == 2 for some in found["train"].headlines)


def test_held_out_texts_are_not_trained_on(root):
    every = entries()
    more = [{**every[40], "summaries": ["another"]}, every[25], every[31]]  # new, to validate on, to test on
    write_entries(root / FILES["train"], more)
    found = load_headlines(data_root=root)
    assert found["train"].headlines == [("another",)]
    write_entries(root / FILES["train"], more[1:])
    with pytest.raises(ValueError, match=r"gigaword_train_sample.* all its texts are in other files too"):
        load_headlines(data_root=root)


def test_files_of_one_s_own(root, tmp_path):
    own = write_entries(tmp_path / "own.jsonl", [GOOD])
    found = load_headlines(data_root=root, files={"test": own, "val": None})
    assert found["test"].texts == ["a b ."]
    assert len(found["val"]) == SIZES["val"]
    with pytest.raises(ValueError, match=r"nowhere\.jsonl is missing"):
        load_headlines(data_root=root, files={"train": tmp_path / "nowhere.jsonl"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "JSONDecodeError"),
        ({"summaries": ["a"]}, "KeyError: 'text'"),
        (GOOD | {"text": " \n"}, r"' \\n' is no text with a word"),
        (GOOD | {"summaries": []}, "it has no summaries"),
        (GOOD | {"summaries": ["a", ""]}, "'' is no text with a word"),
    ],
)
def test_bad_lines(tmp_path, line, message):
    path = write_entries(tmp_path / "bad.jsonl", [GOOD, line, GOOD])
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: line 2 cannot be read .*{message}"):
        read_headlines(path)


@needs_data
def test_real_files():
    try:
        found = load_headlines()
    except FileNotFoundError:
        pytest.skip("the headlines are not there")
    assert all(len(data) > 100 for data in found.values())
