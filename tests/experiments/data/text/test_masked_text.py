"""Hidden tokens: which ones, what stands in their place, another choice in every epoch; and English texts."""

import numpy as np
import pytest
import torch

from experiments.data.text.batches import BEGIN, END, PAD, SPECIAL, padded, train_tokenizer
from experiments.data.text.masked_text import (
    MASK,
    MaskedText,
    encode_sentences,
    hide_tokens,
    load_english,
)
from tests.experiments.data.tiny_files import write

SIZE = 300


@pytest.fixture(scope="module")
def rows():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 30, (200,), generator=generator).tolist()
    middles = [torch.randint(len(SPECIAL), SIZE, (length,), generator=generator) for length in lengths]
    return [torch.cat([torch.tensor([BEGIN]), middle, torch.tensor([END])]) for middle in middles]


def hide(rows, share=0.15):
    tokens, mask = padded(rows)
    return tokens, hide_tokens(tokens, mask, share=share, vocabulary_size=SIZE, generator=np.random.default_rng(0))


def test_which_tokens_are_hidden(rows):
    tokens, batch = hide(rows)
    assert batch.mask.equal(tokens != PAD)
    assert (tokens[batch.hidden] >= len(SPECIAL)).all()
    assert batch.target.equal(tokens[batch.hidden])
    assert batch.tokens[~batch.hidden].equal(tokens[~batch.hidden])
    words = (tokens >= len(SPECIAL)).sum(1)
    assert batch.hidden.sum(1).equal((0.15 * words).round().clamp(min=1).long())


def test_what_stands_in_their_place(rows):
    _, batch = hide(rows * 20, share=0.5)
    shown, target = batch.tokens[batch.hidden], batch.target
    assert (shown == MASK).double().mean() == pytest.approx(0.8, abs=0.01)
    # another token drawn uniformly is once in 296 times the same
    assert (shown == target).double().mean() == pytest.approx(0.1, abs=0.01)
    others = shown[(shown != MASK) & (shown != target)]
    assert others.min() >= len(SPECIAL)
    assert len(others.unique()) == SIZE - len(SPECIAL)
    # every word is as likely to be hidden
    assert batch.hidden[:, 1].double().mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (1, 0)])
def test_masks_depend_on_seed_epoch_and_places(rows, seed, epoch):
    first = MaskedText(rows, vocabulary_size=SIZE)[0, [3, 1, 4]]
    other = MaskedText(rows, vocabulary_size=SIZE, seed=seed)[epoch, [3, 1, 4]]
    same = seed == epoch == 0
    assert first.hidden.equal(other.hidden) == first.tokens.equal(other.tokens) == same


def test_epochs(rows):
    loader = MaskedText(rows, vocabulary_size=SIZE).loader(sentences=16)
    sampler = loader.sampler
    first, again = list(loader), list(loader)
    assert len(first) == len(sampler) == 13
    assert all(a.tokens.equal(b.tokens) for a, b in zip(first, again, strict=True))
    sampler.set_epoch(1)
    assert sum(len(batch.tokens) for batch in loader) == len(rows)
    assert [places for _, places in sampler] != sampler.batches(0)
    fixed = loader.dataset.loader(sentences=16, shuffle=False).sampler  # what validates stays the same
    before = list(fixed)
    fixed.set_epoch(3)
    assert list(fixed) == before


def test_encoding():
    vocabulary = train_tokenizer(["a dog runs", "the dog sleeps"] * 3, size=270)
    long, short = encode_sentences(["the dog sleeps", "a dog"], vocabulary, length=5)
    assert long.tolist() == [BEGIN, *vocabulary.encode("the dog sleeps")[:3], END]
    assert [short.tolist()[0], short.tolist()[-1]] == [BEGIN, END]


def test_english(tmp_path):
    texts = {"train": ["A dog", "A cat", "A dog"], "val": ["Two men"], "test_2016_flickr": ["A cat"]}
    for name, sentences in texts.items():
        for language in ("de", "en"):
            write(tmp_path / "multi30k" / "task1" / f"{name}.{language}", "".join(f"{line}\n" for line in sentences))
    write(tmp_path / "tatoeba-deu-eng" / "deu.txt", "".join(f"Number {i}.\tZahl {i}.\n" for i in range(30)))
    found = load_english("english", data_root=tmp_path)
    assert {split: len(sentences) for split, sentences in found.items()} == {"train": 25, "val": 4, "test": 4}
    # in small letters, each once, and not where it is held out
    assert found["train"].count("a dog") == 1
    assert "a cat" not in found["train"]
    assert load_english("english", limit=10, data_root=tmp_path)["train"] == found["train"][:10]
