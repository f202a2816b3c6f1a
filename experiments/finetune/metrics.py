"""The official metrics of GLUE's tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

from experiments.datasets.text.glue import GlueName

__all__ = ["METRICS", "definition", "glue_scores", "main_metric"]

_TEXTS = {
    "accuracy": "fraction of correct classes",
    "f1": "F1 of the class of paraphrases",
    "matthews": "Matthews correlation of classes",
    "pearson": "Pearson correlation of grades",
    "spearman": "Spearman correlation of grades",
}

METRICS: Mapping[GlueName, tuple[str, ...]] = {
    "rte": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "cola": ("matthews", "accuracy"),
    "sst2": ("accuracy",),
    "stsb": ("pearson", "spearman"),
}
"""Metrics of each task; the first one chooses the epoch."""


def main_metric(task: GlueName) -> str:
    """Name of the metric that chooses the epoch, and that tables compare."""
    return METRICS[task][0]


def definition(name: str) -> str:
    """What a metric means."""
    return _TEXTS[name]


def glue_scores(task: GlueName, predicted: Tensor, labels: Tensor) -> dict[str, float]:
    """The official metrics of predicted classes, or grades, ``[items]``.

    A correlation that does not exist, as all predictions are alike, counts as 0.

    Example:
        >>> glue_scores("cola", torch.tensor([1, 1, 0, 1]), torch.tensor([1, 1, 0, 0]))
        {'matthews': 0.577..., 'accuracy': 0.75}
    """
    return {name: _FUNCTIONS[name](predicted.cpu(), labels.cpu()) for name in METRICS[task]}


def _correlation(function: Callable[..., object]) -> Callable[[Tensor, Tensor], float]:
    def score(predicted: Tensor, labels: Tensor) -> float:
        if predicted.unique().numel() < 2 or labels.unique().numel() < 2:
            return 0.0
        return float(function(predicted.double().numpy(), labels.double().numpy()).statistic)  # type: ignore[attr-defined]

    return score


_FUNCTIONS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": lambda predicted, labels: (predicted == labels).double().mean().item(),
    "f1": lambda predicted, labels: float(f1_score(labels.numpy(), predicted.numpy(), zero_division=0.0)),
    "matthews": lambda predicted, labels: float(matthews_corrcoef(labels.numpy(), predicted.numpy())),
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
}
