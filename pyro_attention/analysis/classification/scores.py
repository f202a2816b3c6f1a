"""Accuracy, proper scores and calibration of class probabilities; samples are averaged in probability space."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from pyro_attention.analysis.classification.inputs import mean_probabilities

__all__ = [
    "ClassificationScores",
    "brier_score",
    "classification_scores",
    "expected_calibration_error",
    "negative_log_likelihood",
]


@dataclass(frozen=True)
class ClassificationScores:
    """Scores of class probabilities, each a mean over items.

    Attributes:
        accuracy: Fraction of items whose most probable class is the true one, 0 to 1.
        nll: Negative log probability of the true class, nats.
        ece: Expected calibration error of the top class, 0 to 1.
        brier: Squared distance of the probabilities from the one-hot class, summed over classes, 0 to 2.
    """

    accuracy: float
    nll: float
    ece: float
    brier: float


def classification_scores(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> ClassificationScores:
    r"""Accuracy, NLL, ECE and Brier score of :math:`\bar p = \frac1S \sum_s p^{(s)}`.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``.
        labels: int64 ``[items]``.
        bins: Number of bins of the ECE.

    Raises:
        ImportError: torchmetrics is not installed.
        TypeError: Probabilities are no floats, or labels not int64.
        ValueError: Wrong shapes, labels out of range, NaN, no probabilities, or no bins.

    Example:
        >>> import torch
        >>> classification_scores(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        ClassificationScores(accuracy=0.5, nll=0.836..., ece=0.25, brier=0.625)
    """
    mean = mean_probabilities(probabilities, labels)
    return ClassificationScores(
        accuracy=(mean.argmax(-1) == labels).float().mean().item(),
        nll=negative_log_likelihood(mean, labels),
        ece=expected_calibration_error(mean, labels, bins=bins),
        brier=brier_score(mean, labels),
    )


def negative_log_likelihood(probabilities: Tensor, labels: Tensor) -> float:
    r"""Mean of :math:`-\log \bar p_y` over items, in nats; probabilities below 1e-12 count as 1e-12.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``.
        labels: int64 ``[items]``.

    Raises:
        TypeError: Probabilities are no floats, or labels not int64.
        ValueError: Wrong shapes, labels out of range, NaN, or no probabilities.

    Example:
        >>> import torch
        >>> negative_log_likelihood(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), torch.tensor([0]))
        0.693...
    """
    mean = mean_probabilities(probabilities, labels)
    # a mean over few samples may be exactly 0
    return nn.functional.nll_loss(mean.clamp_min(1e-12).log(), labels).item()


def brier_score(probabilities: Tensor, labels: Tensor) -> float:
    r"""Mean of :math:`\sum_c (\bar p_c - [c = y])^2` over items: 0 to 2, summed over all classes.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``.
        labels: int64 ``[items]``.

    Raises:
        TypeError: Probabilities are no floats, or labels not int64.
        ValueError: Wrong shapes, labels out of range, NaN, or no probabilities.

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[0.75, 0.25]]), torch.tensor([1]))
        1.125

    Source: Brier (1950), Verification of forecasts expressed in terms of probability.
    """
    mean = mean_probabilities(probabilities, labels)
    distances = mean - nn.functional.one_hot(labels, mean.size(-1))
    return distances.square().sum(-1).mean().item()


def expected_calibration_error(probabilities: Tensor, labels: Tensor, *, bins: int = 15) -> float:
    r"""Calibration of the top class, :math:`\sum_b \frac{n_b}{n} |\mathrm{accuracy}_b - \mathrm{confidence}_b|`.

    Computed by torchmetrics: bins of equal width ``[low, high)``, and one of its own for a confidence of exactly 1.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``.
        labels: int64 ``[items]``.
        bins: Number of bins of equal width on [0, 1].

    Raises:
        ImportError: torchmetrics is not installed.
        TypeError: Probabilities are no floats, or labels not int64.
        ValueError: Wrong shapes, labels out of range, NaN, no probabilities, or no bins.

    Example:
        >>> import torch
        >>> expected_calibration_error(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        0.25

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, equation 3.
    """
    try:
        from torchmetrics.functional.classification import multiclass_calibration_error
    except ImportError as error:
        raise ImportError(
            "the expected calibration error needs torchmetrics: pip install 'pyro-attention[analysis]'"
        ) from error
    mean = mean_probabilities(probabilities, labels)
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins is {bins}, expected a whole number of at least 1")
    return float(multiclass_calibration_error(mean, labels, mean.size(-1), n_bins=bins).item())
