"""MobileNetV2's grid with TensorFlow's padding, and files of weights."""

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from experiments.datasets.images.mobilenet import mobilenet_grid, same_padding
from torch import nn

from experiments.datasets.images import mobilenet
from experiments.datasets.images.image_features import grid_features, torchvision_models

# Mean and standard deviation of the grid, and the first three features of its first cell, of the weights and pixels
# below; computed by `tensorflow_same` in double precision.
REFERENCE = [0.07293, 2.63046, -1.19525, -1.95798, 1.29739]


def tensorflow_same(grid, weight, stride, groups):
    """A convolution with TensorFlow's "SAME": ceil(side / stride) cells, the smaller half of the padding in front."""
    pads = []
    for side, kernel in zip(reversed(grid.shape[2:]), reversed(weight.shape[2:]), strict=True):
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(grid, pads), weight, stride=stride, groups=groups)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights in half precision, and the network that has them; no generator of random numbers is asked."""
    network = torchvision_models().get_model("mobilenet_v2", num_classes=1001).eval()
    state = dict(network.state_dict())
    for place, (name, value) in enumerate(state.items()):
        if value.dim() > 1:
            wave = (torch.arange(value.numel(), dtype=torch.float64).square() * 0.37 + place).sin().view(value.shape)
            state[name] = (wave * (4 / value[0].numel()) ** 0.5).half()
    network.load_state_dict(state)
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    safetensors.torch.save_file(state, path)
    return path, network


@pytest.mark.parametrize("side", [(8, 8), (7, 9), (8, 5)])
@pytest.mark.parametrize("groups", [1, 4])
def test_same_padding_is_that_of_tensorflow(side, groups):
    convolution = nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=groups, bias=False)
    grid, weight = torch.randn(2, 4, *side), convolution.weight
    assert torch.allclose(same_padding(convolution)(grid), tensorflow_same(grid, weight, 2, groups), atol=1e-6)


def test_a_stored_output(weights):
    """Of the whole network, layer by layer as TensorFlow would compute it."""
    path, network = weights
    encoder = mobilenet_grid(path)
    pixels = torch.arange(3 * 64 * 64).mul(37).remainder(256).to(torch.uint8).view(1, 3, 64, 64)
    scaled = encoder.transform(pixels)
    assert torch.allclose(scaled, pixels.float() / 127.5 - 1, atol=1e-6)

    def same(layer, grid):
        return tensorflow_same(grid, layer.weight, layer.stride[0], layer.groups)

    expected = reference(network.features[:18], scaled, same)
    found = encoder.module(scaled)
    assert found.shape == (1, 320, 2, 2)
    assert torch.allclose(found, expected, atol=1e-3)
    assert not torch.allclose(found, network.features[:18](scaled), atol=1)
    numbers = [found.mean(), found.std(), *found[0, :3, 0, 0]]
    assert torch.stack(numbers).tolist() == pytest.approx(REFERENCE, abs=1e-2)


@torch.no_grad()
def reference(features, grid, convolve):
    """The network's layers with another convolution."""
    for block in features:
        found = grid
        for layer in [layer for layer in block.modules() if not list(layer.children())]:
            found = convolve(layer, found) if isinstance(layer, nn.Conv2d) else layer(found)
        grid = grid + found if getattr(block, "use_res_connect", False) else found
    return grid


def test_features_are_kept(weights, tmp_path):
    encoder = mobilenet_grid(weights[0])
    pixels = torch.zeros(2, 3, 64, 64, dtype=torch.uint8)
    assert grid_features(encoder, pixels, tmp_path).shape == (2, 4, 320)
    assert not any(parameter.requires_grad for parameter in encoder.module.parameters())


def test_torchvision_weights_keep_their_padding(monkeypatch):
    seen = []
    monkeypatch.setattr(mobilenet, "pretrained", lambda *found: seen.append(found))
    mobilenet_grid()
    ((name, grid_of),) = seen
    assert name == "mobilenet_v2"
    grid = grid_of(torchvision_models().get_model(name))
    assert len(grid) == 18
    assert {layer.padding for layer in grid.modules() if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2)} == {
        (1, 1)
    }
