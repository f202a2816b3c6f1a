"""Photographs as squares of pixels, the features of their grids, and the networks that make these."""

import os

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torchvision.models import mobilenet_v2

from experiments.data.images import image_features
from experiments.data.images.captions import CaptionedImages, ImageFile
from experiments.data.images.image_features import (
    GridEncoder,
    Scale,
    content_encoder,
    content_targets,
    fingerprint,
    grid_features,
    mobilenet_grid,
    resized_images,
    same_padding,
)

PIXELS = torch.arange(5 * 3 * 8 * 12).remainder(251).to(torch.uint8).view(5, 3, 8, 12)


@pytest.fixture
def photographs(tmp_path):
    """Four photographs of one color each, of several shapes; the first is black."""
    images = []
    for number, size in enumerate([(20, 10), (10, 20), (16, 16), (7, 5)]):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", size, (50 * number, 0, 0)).save(path)
        images.append(ImageFile(path))
    return CaptionedImages(images, [[f"caption {number}"] for number in range(4)], "mine", "val")


# photographs as squares


@pytest.mark.parametrize("size", [8, 64], ids=["smaller", "larger"])
def test_whole_picture_is_kept(tmp_path, size):
    """Left half black, right half white."""
    array = np.zeros((10, 40, 3), np.uint8)
    array[:, 20:] = 255
    Image.fromarray(array).save(tmp_path / "a.png")
    data = CaptionedImages([ImageFile(tmp_path / "a.png")], [["a"]], "mine", "val")
    pixels = resized_images(data, size, tmp_path / "cache")
    assert pixels[0, :, :, : size // 2 - 1].max() < 20
    assert pixels[0, :, :, size // 2 + 1 :].min() > 235


def test_photographs_are_opened_again_when_they_changed(photographs, tmp_path):
    first = resized_images(photographs, 8, tmp_path / "cache")
    assert (first.shape, first.dtype) == ((4, 3, 8, 8), torch.uint8)
    assert first[:, 0, 3, 5].tolist() == [0, 50, 100, 150]
    path = photographs.images[2].path
    Image.new("RGB", (16, 16), (1, 2, 3)).save(path)
    os.utime(path, (0, 0))
    pixels = resized_images(photographs, 8, tmp_path / "cache")
    assert pixels[2, :, 0, 0].tolist() == [1, 2, 3]


# features


class Counting(nn.Module):
    """Counts the pictures that go through."""

    def __init__(self, module):
        super().__init__()
        self.module, self.count = module, 0

    def forward(self, pixels):
        self.count += len(pixels)
        return self.module(pixels)


def tiny(seed=0, mean=0.5):
    torch.manual_seed(seed)
    return GridEncoder("tiny", Counting(nn.Sequential(Scale(mean=(mean, 0.5, 0.5)), nn.Conv2d(3, 4, 4, stride=4))))


def test_features_are_computed_once(tmp_path):
    encoder = tiny()
    first = grid_features(encoder, PIXELS, tmp_path, batch_size=2)
    assert (first.shape, first.dtype) == ((5, 6, 4), torch.float16)
    assert torch.equal(first, grid_features(encoder, PIXELS.clone(), tmp_path))
    assert encoder.module.count == 5
    expected = encoder.module(PIXELS)
    for cell in range(6):
        row, column = divmod(cell, 3)
        assert torch.allclose(first[:, cell].float(), expected[:, :, row, column], atol=2e-3)
    pixels = PIXELS.clone()
    pixels[4, 2, 7, 11] += 1
    for other in ((tiny(), pixels), (tiny(seed=1), PIXELS), (tiny(mean=0.4), PIXELS)):
        assert not torch.equal(grid_features(*other, tmp_path), first)
    with pytest.raises(ValueError, match="bad: features do not fit into 16 bits"):
        grid_features(GridEncoder("bad", nn.Sequential(Scale(), nn.Threshold(10, 1e5))), PIXELS, tmp_path)


# MobileNetV2 with TensorFlow's padding


def tensorflow_same(grid, weight, stride, groups):
    """A convolution with TensorFlow's "SAME": ceil(side / stride) cells, the smaller half of the padding in front."""
    pads = []
    for side, kernel in zip(reversed(grid.shape[2:]), reversed(weight.shape[2:]), strict=True):
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(grid, pads), weight, stride=stride, groups=groups)


@pytest.mark.parametrize(("side", "groups"), [((8, 8), 1), ((7, 9), 4), ((8, 5), 1)])
def test_same_padding_is_that_of_tensorflow(side, groups):
    convolution = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=groups, bias=False)
    grid, weight = torch.randn(2, 4, *side), convolution.weight
    assert torch.allclose(same_padding(convolution)(grid), tensorflow_same(grid, weight, 2, groups), atol=1e-6)


@torch.no_grad()
def test_mobilenet_is_computed_as_tensorflow_would(tmp_path):
    network = mobilenet_v2(num_classes=1001).eval()
    safetensors.torch.save_file(network.state_dict(), tmp_path / "weights.safetensors")
    encoder = mobilenet_grid(tmp_path / "weights.safetensors")
    pixels = torch.arange(3 * 64 * 64).mul(37).remainder(256).to(torch.uint8).view(1, 3, 64, 64)
    grid = encoder.module[0](pixels)
    assert torch.allclose(grid, pixels.float() / 127.5 - 1, atol=1e-6)
    found = encoder.module(pixels)
    for block in network.features[:18]:
        before = grid
        for layer in [layer for layer in block.modules() if not list(layer.children())]:
            is_convolution = isinstance(layer, nn.Conv2d)
            grid = tensorflow_same(grid, layer.weight, layer.stride[0], layer.groups) if is_convolution else layer(grid)
        grid = before + grid if getattr(block, "use_res_connect", False) else grid
    assert found.shape == (1, 320, 2, 2)
    torch.testing.assert_close(found, grid, rtol=1e-3, atol=1e-5)


# the encoder of our own


def colored(number=48, size=32):
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
    assert targets[:, words.index("dog")].tolist() == [True, False, False]
    with pytest.raises(ValueError, match="captions of 2 images have no content word"):
        content_targets([["the"], ["of a"]])


def test_encoder_learns_the_words_and_is_trained_once(tmp_path, monkeypatch):
    pixels, captions = colored()
    state = torch.get_rng_state()
    first = content_encoder(pixels, captions, tmp_path, epochs=3, batch_size=8)
    assert torch.equal(torch.get_rng_state(), state)
    words, targets = content_targets(captions)
    with torch.no_grad():
        assert torch.equal(first.module.predict(pixels) > 0, targets)
    assert set(words) == {"dog", "red", "cat", "hat"}
    fresh = content_encoder(pixels, captions, tmp_path / "elsewhere", epochs=3, batch_size=8)
    other = content_encoder(pixels, captions, tmp_path, seed=1, epochs=1, batch_size=8)
    assert fingerprint(fresh.module) == fingerprint(first.module) != fingerprint(other.module)
    monkeypatch.setattr(image_features, "_train", lambda *arguments: pytest.fail("trained again"))
    again = content_encoder(pixels, captions, tmp_path, epochs=3, batch_size=8)
    assert fingerprint(again.module) == fingerprint(first.module)
