"""Scores of class probabilities, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from sklearn.metrics import roc_auc_score
from torch import Tensor

from pyro_attention.analysis import TemperatureScaling, classification_scores, decompose_uncertainty, pavpu
from pyro_attention.posterior.predictive import Noise

_LEVELS = {"01": 0.01, "05": 0.05, "10": 0.1}
KINDS: Mapping[str, Noise] = {"mean": "none", "attention": "attention", "mc_dropout": "dropout", "both": "both"}
"""Kinds of predictions, and what varies between their samples."""


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL, ECE and Brier score, of probabilities ``[items, classes]`` or samples of them ``[S, ...]``."""
    return asdict(classification_scores(probabilities, labels))


def score_scaled(scaling: TemperatureScaling, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """NLL, ECE and Brier score after temperature scaling, of logits ``[items, classes]`` or samples of them."""
    return {f"scaled_{name}": value for name, value in score(scaling(logits), labels).items() if name != "accuracy"}


def score_samples(logits: Tensor, accurate: Tensor) -> dict[str, float]:
    """PAvPU and mutual information, from logits ``[S, items, classes]`` and whether each item is accurate."""
    levels = pavpu(logits, accurate, thresholds=tuple(_LEVELS.values()))
    information = decompose_uncertainty(logits.softmax(-1)).mutual_information.mean().item()
    found = {f"pavpu_{name}": levels[level].pavpu for name, level in _LEVELS.items()}
    return found | {"mutual_information": information}


def roc_auc(probabilities: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of the second of two classes, from ``[items, 2]``; NaN where a number is not finite."""
    second = probabilities[:, 1]
    return float(roc_auc_score(labels.cpu().numpy(), second.cpu().numpy())) if second.isfinite().all() else math.nan
