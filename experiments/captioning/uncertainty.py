"""Whether the doubt of a network tells good captions from bad ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from experiments.captioning.model import Trained
from experiments.captioning.scores import cider_d, split_words
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.sequence.evaluation import BATCH
from experiments.sequence.model import model_arguments
from experiments.sequence.uncertainty import word_uncertainty
from models.decoding import target_log_probs
from pyro_attention import Soft

__all__ = ["DEFINITIONS", "DOUBTS", "caption_doubts", "ranking"]

DOUBTS = {
    "surprise": "negative log probability of the caption",
    "entropy": "entropy of the next word piece",
    "spread": "mutual information of the next word piece and the attention, over its posterior samples",
}
_COVERAGES = (0.5, 0.25)

DEFINITIONS = {
    f"test_rank_{doubt}": f"Spearman's rank correlation over test photographs between the {text}, mean over its word "
    "pieces, and CIDEr-D of the caption of beam search; negative where doubt tells bad captions"
    for doubt, text in DOUBTS.items()
} | {
    f"test_cider_d_{doubt}_{100 * share:.0f}": f"CIDEr-D of the {share:.0%} of the captions of beam search with the "
    f"smallest {text}, mean over word pieces; document frequencies of all"
    for doubt, text in DOUBTS.items()
    for share in _COVERAGES
}  # fmt: skip


def caption_doubts(trained: Trained, data: RegionCaptions, captions: Sequence[str]) -> dict[str, Tensor]:
    """The numbers of ``DOUBTS``, one for each image and its caption; of soft attention there is no spread."""
    pairs = EncodedCaptions(data.with_captions(captions), trained.vocabulary)
    parts: dict[str, list[Tensor]] = {doubt: [] for doubt in DOUBTS}
    for places in torch.arange(len(pairs)).split(BATCH):
        batch = pairs[places.tolist()].to(trained.device)
        doubt = word_uncertainty(trained, batch, num_samples=trained.config.num_samples)
        surprise = -target_log_probs(trained.model, *model_arguments(batch), inference=trained.inference())
        mask = batch.target_mask
        for name, values in zip(DOUBTS, (surprise, doubt.total, doubt.attention), strict=True):
            parts[name].append((values.where(mask, 0).sum(1) / mask.sum(1)).cpu())
    if isinstance(trained.family, Soft):
        del parts["spread"]
    return {name: torch.cat(values) for name, values in parts.items()}


def ranking(
    doubts: Mapping[str, Tensor], captions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """The numbers of ``DEFINITIONS``; no correlation where all captions score or are doubted the same."""
    scores, metrics = 100 * np.array(cider_d(*split_words(captions, references))), dict[str, float]()
    for name, doubt in doubts.items():
        if np.ptp(scores) > 0 and np.ptp(doubt.numpy()) > 0:
            metrics[f"test_rank_{name}"] = float(stats.spearmanr(doubt.numpy(), scores).statistic)
        surest = scores[doubt.argsort(stable=True).numpy()]
        for share in _COVERAGES:
            kept = surest[: max(1, round(share * len(surest)))]
            metrics[f"test_cider_d_{name}_{100 * share:.0f}"] = float(kept.mean())
    return metrics
