"""Questions about photographs, whose regions are the cells of a frozen network's grid."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from experiments.datasets.images.content_encoder import content_encoder
from experiments.datasets.images.image_features import GridEncoder, encode_photograph, grid_features
from experiments.datasets.images.mobilenet import mobilenet_grid
from experiments.datasets.questions.data import Questions, Regions, cell_positions
from experiments.datasets.questions.entries import Entry, as_questions, held_out
from pyro_attention.registry import Registry

__all__ = ["QUESTIONS", "AskedPhotographs", "PhotographOptions", "encoded", "regions_of"]

_VALIDATION = 0.1  # of the training photographs


@dataclass(frozen=True, kw_only=True)
class PhotographOptions:
    """How photographs become regions.

    Args:
        encoder: "own" is a small network, trained to tell from the photograph which answers it has; or "mobilenet_v2".
        weights: file of the weights of mobilenet_v2, see `mobilenet_grid`; those of torchvision when omitted.
        size: side in pixels that photographs are brought to; each data set has its own when omitted.
        epochs: epochs of the own encoder.
        train: train the own encoder where the cache has none; else that is an error.
        cache: folder of pixels and features; "cache" in the data set's folder when omitted.
        skip: leave out photographs that are missing or cannot be read, and the questions about them.
        device: where to compute features.
        progress: show progress bars.
    """

    encoder: Literal["own", "mobilenet_v2"] = "own"
    weights: Path | None = None
    size: int | None = None
    epochs: int = 15
    train: bool = True
    cache: Path | None = None
    skip: bool = False
    device: torch.device | str = "cpu"
    progress: bool = False


# From the folder of the data sets, and how photographs become regions, to "train", "val" and "test".
QUESTIONS: Registry[Callable[[Path, PhotographOptions], dict[str, Questions]]] = Registry("data set of questions")


class AskedPhotographs(NamedTuple):
    """Photographs of a split, and what is asked about them.

    Attributes:
        pixels: [photographs, 3, height, width] uint8.
        captions: what is known of every photograph, for the own encoder to learn; none of those it is not trained on.
        entries: the questions.
    """

    pixels: Tensor
    captions: Sequence[Sequence[str]]
    entries: Sequence[Entry]


def encoded(
    train: AskedPhotographs, test: AskedPhotographs, options: PhotographOptions, cache: Path
) -> dict[str, Questions]:
    """Hold out a tenth of the training photographs for validation, and encode all photographs.

    The own encoder sees the other training photographs only.

    Raises:
        FileNotFoundError: the encoder's weights are missing.
        ValueError: nothing to train the encoder on, fewer than two photographs, or bad weights.
    """
    # the split, ahead of any features
    plain = as_questions("train", train.entries, Regions(torch.zeros(len(train.pixels), 1), torch.zeros(0)))
    found = dict(zip(("train", "val"), held_out(plain, _VALIDATION, "val"), strict=True))
    encoder = _encoder(train, found["train"].photographs.unique().tolist(), options, cache)
    regions = _regions(encoder, train.pixels, options, cache)
    parts = {split: replace(part, regions=regions) for split, part in found.items()}
    tested = _regions(encoder, test.pixels, options, cache)
    return parts | {"test": as_questions("test", test.entries, tested)}


def _encoder(
    train: AskedPhotographs, photographs: Sequence[int], options: PhotographOptions, cache: Path
) -> GridEncoder:
    if options.encoder == "mobilenet_v2":
        return mobilenet_grid(options.weights)
    kept = [place for place in photographs if train.captions[place]]
    return content_encoder(
        train.pixels[kept], [train.captions[place] for place in kept], cache,
        epochs=options.epochs, device=options.device, progress=options.progress, train=options.train,
    )  # fmt: skip


def _regions(encoder: GridEncoder, pixels: Tensor, options: PhotographOptions, cache: Path) -> Regions:
    return _cells(
        encoder, grid_features(encoder, pixels, cache, device=options.device, progress=options.progress), pixels
    )


def regions_of(image: Image.Image, like: Regions, *, device: torch.device | str = "cpu") -> Regions:
    """Return the regions of one more photograph, made by what made those of others; it is shown in its own shape.

    Raises:
        ValueError: the others are no photographs, or what made their features is not at hand.
    """
    if like.encoder is None or like.pictures is None:
        raise ValueError("the regions were not made here of photographs, so those of another one cannot be made either")
    features, picture = encode_photograph(like.encoder, image, like.pictures.size(-1), device=device)
    return _cells(like.encoder, features, picture[None])


def _cells(encoder: GridEncoder, features: Tensor, pictures: Tensor) -> Regions:
    grid = (math.isqrt(features.size(1)),) * 2
    places = cell_positions(grid).to(features.dtype).expand(len(features), -1, -1)
    features = torch.cat([features, places], -1)
    return Regions(features, torch.ones(features.shape[:2], dtype=torch.bool), grid, pictures, encoder)
