"""Captioning of images with a latent attention to regions: train a network and evaluate it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images, load_maps
from experiments.captioning.evaluation import DEFINITIONS, evaluate
from experiments.captioning.model import Trained, build, load_vocabulary
from experiments.datasets.images.region_captions import EncodedCaptions, OneCaptionSampler, RegionCaptions
from experiments.datasets.images.segmentation import SegmentationMaps
from experiments.run import run_and_show
from experiments.sequence.train import Encoded, SequenceTask

__all__ = ["CaptionData", "CaptioningTask", "train"]


class CaptionData(NamedTuple):
    """All splits, and what is where in the test photographs, if that is known."""

    splits: dict[str, RegionCaptions]
    maps: SegmentationMaps | None


class CaptioningTask(SequenceTask[CaptioningConfig, CaptionData, Trained]):
    """Captions of images."""

    config = CaptioningConfig
    script = "experiments.captioning"
    file = "captions.txt"

    def folder(self, config: CaptioningConfig) -> str:
        return f"captioning/{config.dataset}-{config.guide}-{config.seed}"

    def load(self, config: CaptioningConfig) -> CaptionData:
        return CaptionData(load_images(config, progress=config.progress), load_maps(config))

    def build(self, config: CaptioningConfig, data: CaptionData, folder: Path) -> Trained:
        train = data.splits["train"]
        return build(config, load_vocabulary(config, folder, train), features=train.regions.size(2))

    def encode(self, trained: Trained, data: CaptionData) -> Encoded:
        train = EncodedCaptions(data.splits["train"], trained.vocabulary)
        val = EncodedCaptions(data.splits["val"], trained.vocabulary, references=1)
        sampler = OneCaptionSampler(train, sentences=trained.config.batch_size, seed=trained.config.seed)
        return Encoded(train, val, sampler, train.targets)

    def scores(self, trained: Trained, data: CaptionData) -> tuple[dict[str, float], list[str]]:
        return evaluate(trained, data.splits, data.maps)

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:  # noqa: ARG002
        return DEFINITIONS


def train(config: CaptioningConfig) -> None:
    """The command."""
    run_and_show(CaptioningTask(), config)
