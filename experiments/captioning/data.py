"""Images of a captioning run, as regions with features."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import Tensor

from experiments.captioning.config import CaptioningConfig
from experiments.datasets.images.caption_data import CaptionedImages, caption_words
from experiments.datasets.images.captions import load_captions
from experiments.datasets.images.content_encoder import content_encoder
from experiments.datasets.images.digit_scenes import DigitScenes, digit_scenes
from experiments.datasets.images.image_features import grid_features, resized_images, resnet_grid
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.datasets.places import SPLITS, data_folder
from experiments.harness.training import resolve_device

__all__ = ["load_images"]


def load_images(config: CaptioningConfig, *, progress: bool = False) -> dict[str, RegionCaptions]:
    """All splits; photographs are opened, and encoded where the cache has no features of them.

    Raises:
        ImportError: No torchvision for the encoder that needs it.
        FileNotFoundError: Files of the data set or weights of the encoder are missing.
        ValueError: Bad data.
    """
    if config.dataset == "digits":
        return {split: _digit_regions(scenes, slice(config.images)) for split, scenes in _digits().items()}
    folder = config.cache or data_folder(config.data_root) / config.dataset / "cache"
    device = resolve_device(config.device)
    # everything is read before anything is trained
    opened = {split: _open(config, split, folder, progress) for split in SPLITS}
    if config.encoder == "own":
        data, pixels = opened["train"]
        options = {"seed": config.seed, "epochs": config.encoder_epochs, "device": device, "progress": progress}
        encoder = content_encoder(pixels, data.captions, folder, **options)
    else:
        encoder = resnet_grid(config.encoder)
    found = {}
    for split, (data, pixels) in opened.items():
        regions = grid_features(encoder, pixels, folder, device=device, progress=progress)
        captions = [[" ".join(caption_words(caption)) for caption in texts] for texts in data.captions]
        grid = (math.isqrt(regions.size(1)),) * 2
        found[split] = RegionCaptions(regions, captions, grid, pixels, data.name, encoder.name, skipped=data.skipped)
    return found


@cache
def _digits() -> dict[str, DigitScenes]:
    return digit_scenes(train=6000, most_digits=2)


def _digit_regions(scenes: DigitScenes, kept: slice) -> RegionCaptions:
    scenes = replace(scenes, regions=scenes.regions[kept], digits=scenes.digits[kept], captions=scenes.captions[kept])
    return RegionCaptions(
        scenes.regions, scenes.captions, scenes.grid, scenes.canvases, "digits", "pixels of the cells", scenes
    )


def _open(config: CaptioningConfig, split: str, folder: Path, progress: bool) -> tuple[CaptionedImages, Tensor]:
    data = load_captions(config.dataset, split, data_root=config.data_root, skip=config.skip_bad)
    kept = slice(config.images)
    data = replace(data, images=data.images[kept], captions=data.captions[kept])
    return resized_images(data, config.size, folder, skip=config.skip_bad, progress=progress)
