"""Photographs as squares of pixels, and the features of their grids."""

import os
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from experiments.datasets.images.caption_data import CaptionedImages
from experiments.datasets.images.image_files import ImageFile
from PIL import Image
from torch import nn

from experiments.datasets.images.image_features import (
    GridEncoder,
    Scale,
    fingerprint,
    grid_features,
    resized_images,
    resnet_grid,
)

PIXELS = torch.arange(5 * 3 * 8 * 12).remainder(251).to(torch.uint8).view(5, 3, 8, 12)


@pytest.fixture
def photographs(tmp_path):
    """Four photographs of one colour each, of several shapes."""
    images = []
    for number, size in enumerate([(20, 10), (10, 20), (16, 16), (7, 5)]):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", size, (50 * number, 0, 200)).save(path)
        images.append(ImageFile(path))
    return CaptionedImages(images, [[f"caption {number}"] for number in range(4)], "mine", "val")


class Counting(nn.Module):
    """Counts the pictures that go through."""

    def __init__(self, module):
        super().__init__()
        self.module, self.count = module, 0

    def forward(self, pixels):
        self.count += len(pixels)
        return self.module(pixels)


def files(folder, ending):
    return sorted(folder.glob(f"*{ending}"))


def tiny(seed=0, name="tiny", channels=4):
    torch.manual_seed(seed)
    return GridEncoder(name, Counting(nn.Conv2d(3, channels, 4, stride=4)), Scale())


# photographs as squares


def test_resized(photographs, tmp_path):
    data, pixels = resized_images(photographs, 8, tmp_path / "cache")
    assert data is photographs
    assert (pixels.shape, pixels.dtype) == ((4, 3, 8, 8), torch.uint8)
    for number in range(4):
        assert pixels[number, :, 3, 5].tolist() == [50 * number, 0, 200]
    assert pixels.flatten(2).unique(dim=2).shape == (4, 3, 1)
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".lock", ".npy"]


@pytest.mark.parametrize("size", [8, 64], ids=["smaller", "larger"])
def test_whole_picture_is_kept(tmp_path, size):
    """Left half black, right half white."""
    array = np.zeros((10, 40, 3), np.uint8)
    array[:, 20:] = 255
    Image.fromarray(array).save(tmp_path / "a.png")
    data = CaptionedImages([ImageFile(tmp_path / "a.png")], [["a"]], "mine", "val")
    _, pixels = resized_images(data, size, tmp_path / "cache")
    assert pixels[0, :, :, : size // 2 - 1].max() < 20
    assert pixels[0, :, :, size // 2 + 1 :].min() > 235


def test_photographs_are_opened_once(photographs, tmp_path, monkeypatch):
    _, first = resized_images(photographs, 8, tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(ImageFile, "open", lambda image: pytest.fail("opened again"))
        _, again = resized_images(photographs, 8, tmp_path / "cache")
    assert torch.equal(first, again)
    _, larger = resized_images(photographs, 9, tmp_path / "cache")
    assert larger.shape == (4, 3, 9, 9)


def test_changed_photograph_is_opened_again(photographs, tmp_path):
    resized_images(photographs, 8, tmp_path / "cache")
    path = photographs.images[2].path
    Image.new("RGB", (16, 16), (1, 2, 3)).save(path)
    os.utime(path, (0, 0))
    _, pixels = resized_images(photographs, 8, tmp_path / "cache")
    assert pixels[2, :, 0, 0].tolist() == [1, 2, 3]
    # other photographs, in another order
    _, one = resized_images(photographs.without([0, 1, 3], "unwanted"), 8, tmp_path / "cache")
    assert torch.equal(one, pixels[2:3])


def test_bad_photographs_are_skipped(photographs, tmp_path):
    photographs.images[1].path.write_bytes(b"none")
    photographs.images[3].path.write_bytes(b"none either")
    for _ in range(2):  # the second time from the cache
        data, pixels = resized_images(photographs, 8, tmp_path / "cache", skip=True)
        assert [image.name for image in data.images] == ["0.png", "2.png"]
        assert (data.captions, data.skipped) == ([["caption 0"], ["caption 2"]], {"bad image": 2})
        assert pixels[:, 0, 0, 0].tolist() == [0, 100]
    with pytest.raises(ValueError, match=r"1\.png cannot be read .* --skip-bad"):
        resized_images(photographs, 8, tmp_path / "cache")


# features


def test_grid_features(tmp_path):
    encoder = tiny()
    features = grid_features(encoder, PIXELS, tmp_path, batch_size=2)
    assert (features.shape, features.dtype) == ((5, 6, 4), torch.float16)
    expected = encoder.module(Scale()(PIXELS))
    for cell in range(6):
        row, column = divmod(cell, 3)
        assert torch.allclose(features[:, cell].float(), expected[:, :, row, column], atol=2e-3)


def test_features_are_computed_once(tmp_path):
    encoder = tiny()
    first = grid_features(encoder, PIXELS, tmp_path, batch_size=2)
    again = grid_features(encoder, PIXELS.clone(), tmp_path)
    assert encoder.module.count == 5
    assert torch.equal(first, again)
    again.zero_()  # in memory only
    assert torch.equal(grid_features(encoder, PIXELS, tmp_path), first)
    (path,) = files(tmp_path, ".npy")
    assert np.load(path, allow_pickle=False).shape == (5, 6, 4)


@pytest.mark.parametrize("change", ["weights", "transform", "pixels", "name", "network"])
def test_features_of_something_else(tmp_path, change):
    encoder, pixels = tiny(), PIXELS.clone()
    first = grid_features(encoder, pixels, tmp_path)
    if change == "pixels":
        pixels[4, 2, 7, 11] += 1
    elif change == "weights":
        encoder = tiny(seed=1)
    elif change == "transform":
        encoder = GridEncoder(encoder.name, encoder.module, Scale(mean=(0.4, 0.5, 0.5)))
    elif change == "name":
        encoder = tiny(name="other")
    else:
        encoder = GridEncoder("tiny", nn.Sequential(encoder.module, nn.ReLU()), Scale())
    other = grid_features(encoder, pixels, tmp_path)
    assert torch.equal(first, other) == (change == "name")
    assert len(files(tmp_path, ".npy")) == len(files(tmp_path, ".json")) == 2
    assert torch.equal(grid_features(tiny(), PIXELS, tmp_path), first)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Flatten(), r"bad: features \[5, 288\]; expected \[B, channels, rows, columns\]"),
        (nn.Flatten(0, 1), r"bad: features \[15, 8, 12\]; expected"),
        (nn.Threshold(10, 1e5), "bad: features that 16 bits do not hold; expected"),
    ],
)
def test_module_that_gives_no_grid(tmp_path, module, message):
    with pytest.raises(ValueError, match=message):
        grid_features(GridEncoder("bad", module, Scale()), PIXELS, tmp_path)


def with_statistics():
    module = nn.BatchNorm2d(3)
    module(torch.ones(2, 3, 4, 4))
    return module


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (nn.BatchNorm2d(3), nn.BatchNorm2d(3), True),
        (nn.BatchNorm2d(3), with_statistics(), False),
        (nn.ReLU(), nn.Tanh(), False),
    ],
)
def test_fingerprint(first, second, same):
    assert (fingerprint(first) == fingerprint(second)) == same


# torchvision


@pytest.fixture
def torchvision(monkeypatch):
    """Stands for torchvision's models, with a tiny ResNet."""

    def get_model(name, weights):
        return nn.Sequential(
            nn.Conv2d(3, 6, 32, stride=32), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Linear(6, 9)
        )

    preset = SimpleNamespace(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    weights = SimpleNamespace(name="V2", url="https://nowhere/resnet50.pth", transforms=lambda: preset)
    models = ModuleType("torchvision.models")
    models.list_models = lambda: ["alexnet", "resnet50", "wide_resnet50_2", "quantized_resnet50", "fcn_resnet50"]
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=weights)
    models.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return models


def test_resnet(torchvision, tmp_path):
    encoder = resnet_grid()
    assert encoder.name == "resnet50-V2"
    assert len(encoder.module) == 2
    assert not encoder.module.training
    assert not any(parameter.requires_grad for parameter in encoder.module.parameters())
    features = grid_features(encoder, torch.zeros(2, 3, 224, 224, dtype=torch.uint8), tmp_path)
    assert features.shape == (2, 49, 6)
    assert torch.allclose(encoder.transform.std.flatten(), torch.tensor([0.229, 0.224, 0.225]))
