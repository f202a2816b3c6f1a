"""The image encoder of our own: what it learns, and that it is trained once."""

import pytest
import torch

from experiments.datasets.images import content_encoder as encoder_module
from experiments.datasets.images.content_encoder import ContentEncoder, content_encoder, content_targets
from experiments.datasets.images.image_features import fingerprint, grid_features


def coloured(number=48, size=32):
    """Red pictures of dogs and blue ones of cats."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 60, (number, 3, size, size), generator=generator, dtype=torch.uint8)
    pixels[::2, 0] += 150
    pixels[1::2, 2] += 150
    return pixels, [["a red dog is here", "A dog"] if i % 2 == 0 else ["the cat and a hat"] for i in range(number)]


def test_content_targets():
    words, targets = content_targets([["A dog and a dog", "the park"], ["a cat in a park ."], ["x is not"]])
    assert sorted(words) == ["cat", "dog", "park"]
    assert words[0] == "park"
    assert targets.dtype == torch.bool
    assert targets[:, words.index("dog")].tolist() == [True, False, False]
    assert targets[:, 0].tolist() == [True, True, False]
    with pytest.raises(ValueError, match="2 images, no content word in their captions"):
        content_targets([["the"], ["of a"]])


@pytest.mark.parametrize(("size", "cells"), [(96, 6), (112, 7), (64, 4)])
def test_grid_of_the_encoder(size, cells):
    encoder = ContentEncoder(10, channels=16).eval()
    pixels = torch.randn(2, 3, size, size)
    assert encoder(pixels).shape == (2, 16, cells, cells)
    assert encoder.predict(pixels).shape == (2, 10)


def test_encoder_learns_the_words(tmp_path):
    pixels, captions = coloured()
    encoder = content_encoder(pixels, captions, tmp_path, epochs=3, batch_size=8)
    words, targets = content_targets(captions)
    with torch.no_grad():
        found = encoder.module.predict(encoder.transform(pixels)) > 0
    assert set(words) == {"dog", "red", "cat", "hat"}
    assert torch.equal(found, targets)
    assert encoder.name == "content-encoder-seed0"
    assert not encoder.module.training
    assert not any(parameter.requires_grad for parameter in encoder.module.parameters())


def test_encoder_is_trained_once(tmp_path, monkeypatch):
    pixels, captions = coloured(16)
    state = torch.get_rng_state()
    first = content_encoder(pixels, captions, tmp_path, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)
    fresh = content_encoder(pixels, captions, tmp_path / "elsewhere", epochs=1)
    assert fingerprint(fresh.module) == fingerprint(first.module)
    others = [
        content_encoder(pixels, captions, tmp_path, epochs=2),
        content_encoder(pixels, captions, tmp_path, seed=1, epochs=1),
    ]
    assert len({fingerprint(encoder.module) for encoder in (first, *others)}) == 3
    assert others[1].name == "content-encoder-seed1"
    monkeypatch.setattr(encoder_module, "_train", lambda *arguments: pytest.fail("trained again"))
    again = content_encoder(pixels, captions, tmp_path, epochs=1)
    assert fingerprint(again.module) == fingerprint(first.module)
    assert torch.equal(torch.get_rng_state(), state)
    features = [grid_features(encoder, pixels, tmp_path / "features") for encoder in (first, again)]
    assert torch.equal(*features)
    assert len(list((tmp_path / "features").glob("*.npy"))) == 1
