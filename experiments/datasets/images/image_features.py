"""Photographs as squares of one size, and features of their regions; both computed once and kept on disk."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from tqdm import tqdm

from experiments.datasets.arrays import cached_array, checksum
from experiments.datasets.images.caption_data import CaptionedImages
from experiments.datasets.images.image_files import ImageFile

__all__ = [
    "GridEncoder",
    "Scale",
    "encode",
    "encode_photograph",
    "fingerprint",
    "grid_features",
    "pretrained",
    "resized_images",
    "resnet_grid",
    "shown_pixels",
    "square",
    "torchvision_models",
]


_SHOWN = 640  # pixels of the longer side of a photograph, in a figure


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

    Raises:
        ValueError: without `skip`, a photograph that cannot be read, the first; or a damaged cache.
    """
    bad: dict[str, str] = {}

    def pixels() -> Iterator[np.ndarray]:
        for place, image in enumerate(tqdm(data.images, "photographs", disable=not progress)):
            try:
                yield square(image.open(), size)[None]
            except ValueError as error:
                if not skip:
                    raise
                bad[str(place)] = str(error)
                yield np.zeros((1, 3, size, size), np.uint8)

    key = {"images": _files_fingerprint(data.images), "size": size}
    array, bad = cached_array(folder, f"{data.name}-{data.split}-{size}", key, len(data), pixels, notes=bad)
    if not bad:
        return data, array
    if not skip:
        raise ValueError(next(iter(bad.values())))
    kept = [place for place in range(len(data)) if str(place) not in bad]
    return data.without(map(int, bad), "bad image"), array[kept]


def square(image: Image.Image, size: int) -> np.ndarray:
    """Return a whole picture in RGB as [3, size, size] uint8."""
    resized = image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.array(resized).transpose(2, 0, 1)


def shown_pixels(image: Image.Image) -> Tensor:
    """Return a picture in RGB in its own shape, for a figure: [3, height, width] uint8, 640 pixels at most."""
    smaller = image.copy()
    smaller.thumbnail((_SHOWN, _SHOWN))
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
    """Return the features of the cells of every photograph, computed once and kept on disk.

    Kept features are taken again when pixels ([images, 3, height, width] uint8), weights and transform are the same.

    Returns:
        As of `encode`, read from disk when it is wanted.

    Raises:
        ValueError: as of `encode`, or the cache is damaged.
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
    return cached_array(folder, encoder.name, key, len(pixels), features)[0]


def encode(encoder: GridEncoder, pixels: Tensor, *, device: torch.device | str = "cpu") -> Tensor:
    """Return the features of the cells of photographs of [images, 3, height, width] uint8.

    Returns:
        [images, cells, channels] float16 on the CPU, cells row by row.

    Raises:
        ValueError: no grid comes out, or features are not finite in 16 bits.
    """
    module, transform = encoder.module.to(device).eval(), encoder.transform.to(device)
    with torch.no_grad():
        grid = module(transform(pixels.to(device)))
    if grid.dim() != 4 or len(grid) != len(pixels):
        raise ValueError(f"{encoder.name}: features {list(grid.shape)}; expected [B, channels, rows, columns]")
    cells: Tensor = grid.flatten(2).transpose(1, 2).half()
    if not cells.isfinite().all():
        raise ValueError(f"{encoder.name}: features that 16 bits do not hold; expected them below 65504")
    return cells.cpu()


def encode_photograph(
    encoder: GridEncoder, image: Image.Image, size: int, *, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the features of one photograph, brought to a square of so many pixels as others were, and its picture.

    Returns:
        As of `encode` of one photograph, and as of `shown_pixels`.

    Raises:
        ValueError: as of `encode`.
    """
    pixels = torch.from_numpy(square(image, size))[None]
    return encode(encoder, pixels, device=device), shown_pixels(image)


def resnet_grid(name: str = "resnet50") -> GridEncoder:
    """Return torchvision's ResNet up to its last grid, with the weights torchvision recommends: 7 x 7 at 224 pixels.

    Raises:
        ImportError, FileNotFoundError, ValueError: as of `pretrained`, or no such ResNet.
    """
    known = [other for other in torchvision_models().list_models() if re.fullmatch(r"(wide_)?resne[xt]t?\d+\w*", other)]
    if name not in known:
        raise ValueError(f"no ResNet is named {name!r}; expected one of {', '.join(known)}")
    return pretrained(name, lambda network: nn.Sequential(*list(network.children())[:-2]))  # no pooling, no classes


def pretrained(name: str, grid_of: Callable[[nn.Module], nn.Module]) -> GridEncoder:
    """Return a part of a network of torchvision, with the weights torchvision recommends.

    Raises:
        ImportError: torchvision is missing, or does not go with this torch.
        FileNotFoundError: the weights are not there and cannot be fetched.
        ValueError: fetched weights are damaged.
    """
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
    except RuntimeError as error:  # torch's, of a checksum or of a damaged file
        raise ValueError(f"{cache}: weights of {name} are damaged: {error}. Remove the file, and try again.") from error
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
