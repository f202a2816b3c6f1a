"""Scores of explanations: how often a reason is named, and how honest its probability is."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error


def reason_scores(probabilities: Tensor, reasons: Tensor) -> dict[str, float]:
    """Score the probability of each candidate to be the reason of an item.

    Args:
        probabilities: ``[items, candidates]``; NaN where an item has fewer candidates.
        reasons: The candidate that is the reason ``[items]``.

    Returns:
        ``top_1``, the share of items whose most probable candidate is the reason; ``auroc`` of the reasons against all
        other candidates; ``ece``, the expected calibration error with 15 bins.
    """
    truth = torch.nn.functional.one_hot(reasons, probabilities.size(-1))
    is_there = probabilities.isfinite()
    flat, is_reason = probabilities[is_there].clamp(0, 1), truth[is_there]
    return {
        "top_1": (probabilities.nan_to_num(-1).argmax(-1) == reasons).float().mean().item(),
        "auroc": binary_auroc(flat, is_reason).item(),
        "ece": binary_calibration_error(flat, is_reason, n_bins=15, norm="l1").item(),
    }


def named(kind: str, scores: dict[str, float]) -> dict[str, float]:
    """Put the kind of an explanation before the names of its scores."""
    return {f"{kind}_{name}": value for name, value in scores.items()}
