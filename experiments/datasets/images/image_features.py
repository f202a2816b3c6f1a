"""Photographs as squares of one size, and features of their regions; both computed once and kept on disk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from experiments.datasets.arrays import cached_array, checksum
from experiments.datasets.images.captions import CaptionedImages, ImageFile
from experiments.files import reading


class Scale(nn.Module):
    """Makes pixels of 0 to 255 numbers around 0, colour by colour: [B, 3, height, width] uint8 to float32."""

    def __init__(self, mean: Sequence[float] = (0.5, 0.5, 0.5), std: Sequence[float] = (0.25, 0.25, 0.25)) -> None:
        super().__init__()
        self.mean, self.std = [torch.tensor(list(values)).view(-1, 1, 1) for values in (mean, std)]

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255 - self.mean.to(pixels.device)) / self.std.to(pixels.device)

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


@dataclass(frozen=True)
class GridEncoder:
    """A frozen network that gives features of the cells of a grid, and what results call it."""

    name: str
    module: nn.Module  # [B, 3, height, width] float32 to [B, channels, rows, columns]
    transform: nn.Module  # pixels, [B, 3, height, width] uint8, to what the module takes; such as `Scale`


def fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 checksum of a module's description and weights."""
    digest = sha256(repr(module).encode())
    for name, tensor in module.state_dict().items():
        digest.update(name.encode())
        digest.update(checksum(tensor).encode())
    return digest.hexdigest()


def resized_images(
    data: CaptionedImages, size: int, folder: Path, *, skip: bool = False, progress: bool = False
) -> tuple[CaptionedImages, Tensor]:
    """Open every photograph once, make it a square and keep the pixels on disk.

    The whole photograph becomes the square, whatever its shape was: nothing that a caption tells is cut off. Kept
    pixels are taken again when the names, sizes and times of the files are the same. With `skip`, bad photographs are
    left out of the data and counted.

    Returns:
        The data, and [images, 3, size, size] uint8, read from disk when it is wanted.
    """

    def pixels() -> Iterator[np.ndarray]:
        for image in tqdm(data.images, "photographs", disable=not progress):
            try:
                yield square(image.open(), size)[None]
            except ValueError:
                if not skip:
                    raise
                yield np.zeros((1, 3, size, size), np.uint8)

    key = {"images": _files_fingerprint(data.images), "size": size}
    array = cached_array(folder, f"{data.name}-{data.split}-{size}", key, len(data), pixels)
    bad = set()
    for place in (place for place, picture in enumerate(array) if not picture.any()):
        try:
            data.images[place].open()
        except ValueError:
            if not skip:
                raise
            bad.add(place)
    if not bad:
        return data, array
    return data.without(bad, "bad image"), array[[place for place in range(len(data)) if place not in bad]]


def square(image: Image.Image, size: int) -> np.ndarray:
    """Return a whole picture in RGB as [3, size, size] uint8."""
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized).transpose(2, 0, 1)


def shown_pixels(image: Image.Image) -> Tensor:
    """Return a picture in RGB in its own shape, for a figure: [3, height, width] uint8, 640 pixels at most."""
    smaller = image.copy()
    smaller.thumbnail((640, 640))
    return torch.from_numpy(np.array(smaller)).permute(2, 0, 1)


def _files_fingerprint(images: Sequence[ImageFile]) -> str:
    files = {path: path.stat() for path in {image.path for image in images}}
    rows = [
        f"{image.name} {image.offset} {image.size} {files[image.path].st_size} {files[image.path].st_mtime_ns}\n"
        for image in images
    ]
    return sha256("".join(rows).encode()).hexdigest()


def grid_features(
    encoder: GridEncoder,
    pixels: Tensor,
    folder: Path,
    *,
    batch_size: int = 64,
    device: torch.device | str = "cpu",
    progress: bool = False,
) -> Tensor:
    """Return the features of the cells of every photograph, as of `encode`, computed once and kept on disk.

    Kept features are taken again when pixels ([images, 3, height, width] uint8), weights and transform are the same.
    """

    def features() -> Iterator[np.ndarray]:
        for batch in tqdm(pixels.split(batch_size), encoder.name, disable=not progress):
            yield encode(encoder, batch, device=device).numpy()

    key = {
        "encoder": encoder.name,
        "weights": fingerprint(encoder.module),
        "transform": fingerprint(encoder.transform),
        "pixels": checksum(pixels),
    }
    return cached_array(folder, encoder.name, key, len(pixels), features)


def encode(encoder: GridEncoder, pixels: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Return the features of the cells of photographs of [images, 3, height, width] uint8.

    Returns:
        [images, cells, channels] float16 on the CPU, cells row by row.
    """
    module, transform = encoder.module.to(device).eval(), encoder.transform.to(device)
    with torch.no_grad():
        cells: Tensor = module(transform(pixels.to(device))).flatten(2).transpose(1, 2).half()
    if not cells.isfinite().all():
        raise ValueError(f"{encoder.name}: features that 16 bits do not hold; expected them below 65504")
    return cells.cpu()


def encode_photograph(
    encoder: GridEncoder, image: Image.Image, size: int, *, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the features of one photograph, brought to a square of so many pixels as others were, and its picture.

    Returns:
        As of `encode` of one photograph, and as of `shown_pixels`.
    """
    return encode(encoder, torch.from_numpy(square(image, size))[None], device=device), shown_pixels(image)


# Networks of torchvision


def resnet_grid(name: str = "resnet50") -> GridEncoder:
    """Return torchvision's ResNet up to its last grid, with the weights torchvision recommends: 7 x 7 at 224 pixels."""
    return pretrained(name, lambda network: nn.Sequential(*list(network.children())[:-2]))  # no pooling, no classes


def mobilenet_grid(path: Path | None = None) -> GridEncoder:
    """Return MobileNetV2 up to its last narrow grid: 320 features of 6 x 6 cells at 192 pixels.

    Args:
        path: weights of TensorFlow's network (1001 classes) as safetensors under torchvision's names; torchvision's own
            when omitted. TensorFlow's network takes pixels from -1 to 1, and where it halves the grid it pads below and
            right only.

    Source:
        Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018.
    """
    if path is None:
        return pretrained("mobilenet_v2", _narrow_grid)
    # a class more than torchvision's networks have, for the background
    network = torchvision_models().get_model("mobilenet_v2", num_classes=1001)
    expected = "MobileNetV2's weights in the format safetensors, under torchvision's names"
    with reading(path, expected, "name another file by --encoder-weights"):
        network.load_state_dict(safetensors.torch.load_file(path))
    grid = same_padding(_narrow_grid(network)).requires_grad_(False).eval()
    return GridEncoder("mobilenet_v2-tensorflow", grid, Scale(std=(0.5, 0.5, 0.5)))


def _narrow_grid(network: Any) -> nn.Module:
    grid: nn.Module = network.features[:18]  # one more layer widens 320 features to 1280
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


def pretrained(name: str, grid_of: Callable[[nn.Module], nn.Module]) -> GridEncoder:
    """Return a part of a network of torchvision, with the weights torchvision recommends."""
    models = torchvision_models()
    weights = models.get_model_weights(name).DEFAULT
    cache = Path(torch.hub.get_dir()) / "checkpoints"
    try:
        network = models.get_model(name, weights=weights)
    except (OSError, HTTPException) as error:
        raise FileNotFoundError(
            f"{weights.url} could not be fetched to {cache}: {error}. Put the file there, or use the encoder that is "
            f"trained on the captions."
        ) from error
    preset = weights.transforms()
    grid = grid_of(network).requires_grad_(False).eval()
    return GridEncoder(f"{name}-{weights.name}", grid, Scale(preset.mean, preset.std))


def torchvision_models() -> Any:
    """Return the module torchvision.models; ImportError if it is missing, or does not go with this torch."""
    try:
        return import_module("torchvision.models")
    except (ImportError, RuntimeError, OSError) as error:  # a CUDA build beside a CPU torch raises RuntimeError
        raise ImportError(
            f"torchvision cannot be imported: {error}; expected the build that goes with torch {torch.__version__}. "
            f"Install it (https://pytorch.org/get-started), or use the encoder that is trained on the captions."
        ) from error
