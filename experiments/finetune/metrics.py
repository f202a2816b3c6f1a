"""The official metrics of GLUE's tasks, also of resampled test parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from experiments.datasets.text.glue import GlueName

__all__ = ["METRICS", "definition", "glue_scores", "main_metric", "weighted_score"]

Array = NDArray[np.float64]

METRICS: Mapping[GlueName, tuple[str, ...]] = {
    "rte": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "cola": ("matthews", "accuracy"),
    "sst2": ("accuracy",),
    "stsb": ("pearson", "spearman"),
}
"""Metrics of each task; tables compare the first one, and settings are chosen by it."""

_TEXTS = {
    "accuracy": "fraction of correct classes",
    "f1": "F1 of the class of paraphrases",
    "matthews": "Matthews correlation of classes",
    "pearson": "Pearson correlation of grades",
    "spearman": "Spearman correlation of grades",
}


def main_metric(task: GlueName) -> str:
    """Name of the metric that tables compare, and that settings are chosen by."""
    return METRICS[task][0]


def definition(name: str) -> str:
    """What a metric means."""
    return _TEXTS[name]


def glue_scores(task: GlueName, predicted: Array, labels: Array) -> dict[str, float]:
    """The official metrics of predicted classes, or grades, ``[items]``.

    A correlation or F1 that does not exist, as all predictions are alike, counts as 0.

    Example:
        >>> glue_scores("cola", np.array([1.0, 1, 0, 1]), np.array([1.0, 1, 0, 0]))
        {'matthews': 0.577..., 'accuracy': 0.75}
    """
    once = np.ones((1, len(labels)))
    return {name: float(weighted_score(name, predicted, labels, once)[0]) for name in METRICS[task]}


def weighted_score(name: str, predicted: Array, labels: Array, counts: Array) -> Array:
    """A metric of parts in which items are there several times, or not at all, ``[R]``.

    Args:
        name: The metric.
        predicted: Classes or grades ``[items]``.
        labels: The true ones ``[items]``.
        counts: How often each item is there, ``[R, items]``; ranks are those of all items, each there once.
    """
    return _FUNCTIONS[name](np.asarray(predicted, float), np.asarray(labels, float), counts)


def _accuracy(predicted: Array, labels: Array, counts: Array) -> Array:
    return np.asarray(counts @ (predicted == labels) / counts.sum(1))


def _f1(predicted: Array, labels: Array, counts: Array) -> Array:
    total = counts @ (predicted + labels)
    return np.asarray(2 * (counts @ (predicted * labels)) / np.maximum(total, 1))


def _correlation(predicted: Array, labels: Array, counts: Array) -> Array:
    """Pearson's correlation; of two classes it is that of Matthews."""
    shares = counts / counts.sum(1, keepdims=True)
    # the same numbers for all parts, near 0: no digits are lost
    x, y = predicted - predicted.mean(), labels - labels.mean()
    mean_x, mean_y = shares @ x, shares @ y
    spread = np.maximum(shares @ x**2 - mean_x**2, 0) * np.maximum(shares @ y**2 - mean_y**2, 0)
    exists = spread > 1e-24
    return np.where(exists, (shares @ (x * y) - mean_x * mean_y) / np.sqrt(np.where(exists, spread, 1.0)), 0.0)


_FUNCTIONS: Mapping[str, Callable[[Array, Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _correlation,
    "pearson": _correlation,
    "spearman": lambda predicted, labels, counts: _correlation(rankdata(predicted), rankdata(labels), counts),
}
