"""Images of a captioning run, as regions with features, and what is where in them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

from torch import Tensor

from experiments.captioning.config import CaptioningConfig
from experiments.datasets.images.captions import CaptionedImages, caption_words, load_captions
from experiments.datasets.images.digit_scenes import DigitScenes, digit_scenes
from experiments.datasets.images.image_features import (
    GridEncoder,
    content_encoder,
    grid_features,
    mobilenet_grid,
    resized_images,
    resnet_grid,
)
from experiments.datasets.images.region_captions import RegionCaptions
from experiments.datasets.images.segmentation import SegmentationMaps, read_maps
from experiments.datasets.places import SPLITS, data_folder
from experiments.harness.training import resolve_device

__all__ = ["load_images", "load_maps"]

_SIZE, _SIZES = 96, {"mobilenet_v2": 192}  # pixels of a side of the photographs, by the encoder
_MAPS = Path("flickr8k-voc-maps", "flickr8k_voc_maps.npz")


def load_images(
    config: CaptioningConfig, *, progress: bool = False, train_encoder: bool = True
) -> dict[str, RegionCaptions]:
    """All splits; photographs are opened, and encoded where the cache has no features of them.

    Without ``train_encoder``, the own encoder has to be in the cache.

    Raises:
        ImportError: No torchvision for the encoder that needs it.
        FileNotFoundError: Files of the data set or weights of the encoder are missing.
        ValueError: Bad data.
    """
    if config.dataset == "digits":
        return {split: _digit_regions(scenes, slice(config.images)) for split, scenes in _digits().items()}
    folder = config.cache or data_folder(config.data_root) / config.dataset / "cache"
    pretrained = _pretrained(config)
    # everything is read before anything is trained
    opened = {split: _open(config, split, folder, progress) for split in SPLITS}
    device = resolve_device(config.device)
    encoder = pretrained or content_encoder(
        opened["train"][1], opened["train"][0].captions, folder, seed=config.seed, epochs=config.encoder_epochs,
        device=device, progress=progress, train=train_encoder,
    )  # fmt: skip
    found = {}
    for split, (data, pixels) in opened.items():
        regions = grid_features(encoder, pixels, folder, device=device, progress=progress)
        captions = [[" ".join(caption_words(caption)) for caption in texts] for texts in data.captions]
        grid = (math.isqrt(regions.size(1)),) * 2
        found[split] = RegionCaptions(
            regions, captions, grid, pixels, data.name, encoder.name, encoder, data.images, skipped=data.skipped
        )
    return found


def _pretrained(config: CaptioningConfig) -> GridEncoder | None:
    """The encoder, unless it is the own one."""
    if config.encoder_weights is not None and config.encoder != "mobilenet_v2":
        raise ValueError(f"encoder_weights are of mobilenet_v2, but encoder is {config.encoder}; give one of the two")
    if config.encoder == "own":
        return None
    return mobilenet_grid(config.encoder_weights) if config.encoder == "mobilenet_v2" else resnet_grid(config.encoder)


def load_maps(config: CaptioningConfig) -> SegmentationMaps | None:
    """Which class is where in photographs; None where there are no maps, and of digit scenes.

    Raises:
        FileNotFoundError: The file that the configuration names is missing.
        ValueError: It is damaged or holds something else.
    """
    if config.dataset == "digits":
        return None
    usual = data_folder(config.data_root) / _MAPS
    return read_maps(config.maps or usual) if config.maps is not None or usual.is_file() else None


@cache
def _digits() -> dict[str, DigitScenes]:
    return digit_scenes(train=6000, most_digits=2)


def _digit_regions(scenes: DigitScenes, kept: slice) -> RegionCaptions:
    scenes = replace(scenes, regions=scenes.regions[kept], digits=scenes.digits[kept], captions=scenes.captions[kept])
    return RegionCaptions(
        scenes.regions, scenes.captions, scenes.grid, scenes.canvases, "digits", "pixels of the cells", scenes=scenes
    )


def _open(config: CaptioningConfig, split: str, folder: Path, progress: bool) -> tuple[CaptionedImages, Tensor]:
    data = load_captions(config.dataset, split, data_root=config.data_root, skip=config.skip_bad)
    kept = slice(config.images)
    data = replace(data, images=data.images[kept], captions=data.captions[kept])
    size = config.size or _SIZES.get(config.encoder, _SIZE)
    return resized_images(data, size, folder, skip=config.skip_bad, progress=progress)
