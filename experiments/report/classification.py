"""Scores of class probabilities, by name."""

from __future__ import annotations

import math
from dataclasses import asdict

from sklearn.metrics import roc_auc_score
from torch import Tensor

from pyro_attention.analysis import TemperatureScaling, classification_scores

SCORES = {
    "accuracy": "fraction of correct classes",
    "nll": "mean negative log probability of the true class, nats",
    "ece": "expected calibration error of the top class: 15 bins of equal width, mean absolute gap",
    "brier": "mean squared distance of the probabilities from the one-hot class, summed over classes (0 to 2)",
}
SCALED_SCORES = {
    f"scaled_{name}": f"{SCORES[name]}; after temperature scaling on validation data"
    for name in ("nll", "ece", "brier")
}


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """The numbers of ``SCORES``, from probabilities ``[items, classes]`` or samples of them ``[S, items, classes]``."""
    return asdict(classification_scores(probabilities, labels))


def score_scaled(scaling: TemperatureScaling, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The numbers of ``SCALED_SCORES``, from logits ``[items, classes]`` or samples of them."""
    scores = score(scaling(logits), labels)
    return {name: scores[name.removeprefix("scaled_")] for name in SCALED_SCORES}


def roc_auc(probabilities: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of the second of two classes, from ``[items, 2]``; NaN where a number is not finite.

    Raises:
        ValueError: Not two classes, or items of one class alone.
    """
    if probabilities.size(-1) != 2 or len(labels.unique()) != 2:
        seen = f"{probabilities.size(-1)} classes and labels {labels.unique().tolist()}"
        raise ValueError(f"{seen}, expected two classes with items of both")
    second = probabilities[:, 1]
    return float(roc_auc_score(labels.cpu().numpy(), second.cpu().numpy())) if second.isfinite().all() else math.nan
