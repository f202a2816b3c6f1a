"""MobileNetV2 (Sandler et al., 2018) up to its last narrow grid: 320 features of 6 x 6 cells at 192 pixels."""

from pathlib import Path
from typing import Any

import safetensors.torch
import torch.nn.functional as F
from torch import Tensor, nn

from experiments.datasets.images.image_features import GridEncoder, Scale, pretrained, torchvision_models
from experiments.files import reading

__all__ = ["mobilenet_grid", "same_padding"]

_LAST = 18  # layers up to the last of the narrow ones; one more widens 320 features to 1280
_CLASSES = 1001  # of TensorFlow's networks, with one for the background; torchvision's have 1000
_EXPECTED = "MobileNetV2's weights in the format safetensors, under torchvision's names"


def mobilenet_grid(path: Path | None = None) -> GridEncoder:
    """Return MobileNetV2's grid, with torchvision's weights, or with TensorFlow's out of a file.

    TensorFlow's network takes pixels from -1 to 1, and where it halves the grid it pads below and right only.

    Args:
        path: weights of TensorFlow's network (1001 classes) as safetensors under torchvision's names; torchvision's own
            when omitted.

    Raises:
        ImportError: torchvision is missing, or does not go with this torch.
        FileNotFoundError: torchvision's weights cannot be fetched.
        DamagedFileError: the file is missing, damaged, or holds weights of another network.
    """
    if path is None:
        return pretrained("mobilenet_v2", _grid)
    network = torchvision_models().get_model("mobilenet_v2", num_classes=_CLASSES)
    with reading(path, _EXPECTED, "name another file by --encoder-weights"):
        network.load_state_dict(safetensors.torch.load_file(path))
    grid = same_padding(_grid(network)).requires_grad_(False).eval()
    return GridEncoder("mobilenet_v2-tensorflow", grid, Scale(std=(0.5, 0.5, 0.5)))


def _grid(network: Any) -> nn.Module:
    grid: nn.Module = network.features[:_LAST]
    return grid


def same_padding(module: nn.Module) -> nn.Module:
    """Let convolutions with a stride of 2 and a kernel of 3 pad as TensorFlow does, "SAME"; in place.

    An even side gets one pixel behind it, an odd one a pixel at either end.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d) and layer.stride == (2, 2):
            layer.padding = (0, 0)
            layer.register_forward_pre_hook(_pad)
    return module


def _pad(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    (grid,) = inputs
    return F.pad(grid, (grid.size(-1) % 2, 1, grid.size(-2) % 2, 1))
