"""Accuracy and calibration of class probabilities."""

from __future__ import annotations

from torch import Tensor, nn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

__all__ = ["DEFINITIONS", "score"]

DEFINITIONS = {
    "accuracy": "fraction of correct classes",
    "nll": "mean negative log probability of the true class, nats",
    "ece": "expected calibration error of the top class: 15 bins of equal width, mean absolute gap",
    "brier": "mean squared distance of the probabilities from the one-hot class, summed over classes (0 to 2)",
}


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL, ECE and Brier score.

    Args:
        probabilities: ``[items, classes]``.
        labels: int64 ``[items]``.

    Example:
        >>> import torch
        >>> score(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        {'accuracy': 0.5, 'nll': 0.836..., 'ece': 0.25, 'brier': 0.625}
    """
    classes = probabilities.size(-1)
    # a mean over few samples may be exactly 0
    logarithms = probabilities.clamp_min(1e-12).log()
    distances = probabilities - nn.functional.one_hot(labels, classes)
    scores = {
        "accuracy": multiclass_accuracy(probabilities, labels, classes, average="micro"),
        "nll": nn.functional.nll_loss(logarithms, labels),
        "ece": multiclass_calibration_error(probabilities, labels, classes),
        "brier": distances.square().sum(-1).mean(),
    }
    return {name: value.item() for name, value in scores.items()}
