"""Batches of images with captions, for the evaluation of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from experiments.data.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.data.text.batches import Batch, in_order
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import AnyTrained


def batches(trained: AnyTrained, data: RegionCaptions, *, references: int) -> Iterator[Batch]:
    """Yield images with their first ``references`` captions, in batches of similar lengths, on the network's device."""
    pairs = EncodedCaptions(data, trained.vocabulary, references=references)
    return in_order(pairs, sentences=BATCH, device=trained.device)


def captioned_batches(trained: AnyTrained, data: RegionCaptions, captions: Sequence[str]) -> Iterator[Batch]:
    """Yield images with one given caption each, in their order; ``indices`` of a batch are those of the images."""
    pairs = EncodedCaptions(data.with_captions(captions), trained.vocabulary)
    for indices in torch.arange(len(pairs)).split(BATCH):
        yield pairs[indices.tolist()].to(trained.device)
