"""The image encoder of our own: what it learns, and that it is trained once."""

import numpy as np
import pytest
import torch

from experiments.datasets.images import content_encoder as encoder_module
from experiments.datasets.images.content_encoder import ContentEncoder, content_encoder, content_targets
from experiments.datasets.images.image_features import fingerprint, grid_features
from tests.experiments.datasets.images.cached_files import files


def coloured(number=48, size=32):
    """Red pictures of dogs and blue ones of cats."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 60, (number, 3, size, size), generator=generator, dtype=torch.uint8)
    pixels[::2, 0] += 150
    pixels[1::2, 2] += 150
    return pixels, [["a red dog is here", "A dog"] if i % 2 == 0 else ["the cat and a hat"] for i in range(number)]


@pytest.fixture
def trained(tmp_path):
    """Pictures, their captions, and the file of the encoder trained on them."""
    pixels, captions = coloured(16)
    content_encoder(pixels, captions, tmp_path, epochs=1)
    return pixels, captions, *files(tmp_path, ".npz")


def test_content_targets():
    words, targets = content_targets([["A dog and a dog", "the park"], ["a cat in a park ."], ["x is not"]])
    assert sorted(words) == ["cat", "dog", "park"]
    assert words[0] == "park"
    assert targets.dtype == torch.bool
    assert targets[:, words.index("dog")].tolist() == [True, False, False]
    assert targets[:, 0].tolist() == [True, True, False]
    with pytest.raises(ValueError, match="2 images, no content word in their captions"):
        content_targets([["the"], ["of a"]])


@pytest.mark.parametrize(("most", "number"), [(1, 1), (2, 2), (500, 3)])
def test_number_of_content_words(most, number):
    words, targets = content_targets([["A dog and a dog", "the park"], ["a cat in a park ."]], most=most)
    assert words[0] == "park"
    assert len(words) == targets.size(1) == number


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
    assert len(files(tmp_path / "features", ".npy")) == 1


def cut_off(content):
    return content[:-100]


def overwritten(content):
    return content[:5000] + bytes(100) + content[5100:]


@pytest.mark.parametrize("damage", [cut_off, lambda _: b"", overwritten], ids=["cut off", "empty", "overwritten"])
def test_damaged_encoder(trained, tmp_path, damage):
    pixels, captions, path = trained
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"seed0-\w{16}\.npz: .* Remove the file, and the encoder is trained again"):
        content_encoder(pixels, captions, tmp_path, epochs=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights[1:], r"is float32 of shape \[\d+.*; expected float32 of shape"),
        (lambda weights: weights.astype(np.float64), "is float64 of shape .*; expected float32 of shape"),
        (lambda weights: weights * np.float32(np.nan), "holds NaN or infinite weights; expected finite ones"),
        (lambda weights: None, "is missing; expected float32 of shape"),
    ],
)
def test_encoder_of_other_weights(trained, tmp_path, change, message):
    pixels, captions, path = trained
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["words.weight"] = change(arrays["words.weight"])
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=rf"\.npz: words\.weight {message}.* Remove the file, and the encoder"):
        content_encoder(pixels, captions, tmp_path, epochs=1)


def test_encoder_of_other_data(tmp_path):
    pixels, captions = coloured(16)
    for number, folder in enumerate([tmp_path / "a", tmp_path / "b"]):
        content_encoder(pixels + number, captions, folder, epochs=1)
    files(tmp_path / "b", ".npz")[0].replace(files(tmp_path / "a", ".npz")[0])
    with pytest.raises(ValueError, match=r"\.npz: trained with other data or settings\. Remove the file"):
        content_encoder(pixels, captions, tmp_path / "a", epochs=1)


@pytest.mark.parametrize(
    ("shape", "number", "message"),
    [
        ((2, 3, 32, 32), 3, "2 images and captions of 3; expected as many"),
        ((0, 3, 32, 32), 0, "0 images and captions of 0; expected as many, and at least one"),
        ((2, 3, 32, 40), 2, r"images of \[32, 40\] pixels; expected sides that divide by 16"),
    ],
)
def test_sizes_that_do_not_go_together(tmp_path, shape, number, message):
    with pytest.raises(ValueError, match=message):
        content_encoder(torch.zeros(shape, dtype=torch.uint8), [["a dog"]] * number, tmp_path)
