"""Selective prediction: how accurate is a model on the items it is most confident of?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention.analysis.classification.inputs import check_accuracy, mean_probabilities
from pyro_attention.analysis.inputs import check_floats

__all__ = ["SelectiveAccuracy", "max_probability", "selective_accuracy"]


@dataclass(frozen=True)
class SelectiveAccuracy:
    """Accuracy on the k most confident items, for every k.

    Attributes:
        coverage: ``k / items`` for k = 1 to all of them, float64 ``[items]``.
        accuracy: Mean accuracy of the k most confident ones, float64 ``[items]``; where equal confidence leaves open
            which these are, the mean over all choices.
    """

    coverage: Tensor
    accuracy: Tensor

    def accuracy_at(self, coverage: float) -> float:
        """Accuracy on the least number of most confident items that reaches a coverage in (0, 1]."""
        if not 0 < coverage <= 1:
            raise ValueError(f"coverage is {coverage}, expected a fraction of the items in (0, 1]")
        # 0.07 * 100 is 7.000000000000001, and means 7
        return self.accuracy[math.ceil(coverage * len(self.accuracy) * (1 - 1e-12)) - 1].item()

    @property
    def area(self) -> float:
        """Area under the risk-coverage curve (AURC): mean error over all coverages; 0 to 1, lower is better."""
        return (1 - self.accuracy).mean().item()


def selective_accuracy(confidence: Tensor, correct: Tensor) -> SelectiveAccuracy:
    r"""Accuracy against coverage, :math:`A(k/N) = \frac1k \sum_{i \le k} a_{(i)}`, items by falling confidence.

    Args:
        confidence: ``[items]``, larger is surer, in any unit: :func:`max_probability` is the usual choice, minus the
            mutual information of ``decompose_uncertainty`` another. Only its order matters.
        correct: ``[items]``: boolean, or soft accuracies from 0 to 1.

    Raises:
        TypeError: Confidence is no float, or correct is neither boolean nor float.
        ValueError: Wrong shapes, no items, NaN, or accuracies outside [0, 1].

    Example:
        >>> curve = selective_accuracy(torch.tensor([0.9, 0.6, 0.8, 0.7]), torch.tensor([True, False, True, False]))
        >>> curve.accuracy_at(0.5), curve.accuracy_at(1.0), curve.area
        (1.0, 0.5, 0.20833)

    Source: Geifman and El-Yaniv (2017), Selective Classification for Deep Neural Networks; the area: Geifman et al.
    (2019), Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers.
    """
    accuracy = check_accuracy("correct", correct)
    check_floats("confidence", confidence, verb="has")
    if confidence.shape != accuracy.shape:
        raise ValueError(f"confidence has shape {tuple(confidence.shape)}, expected [items] = {tuple(accuracy.shape)}")
    if confidence.isnan().any():
        raise ValueError(f"{confidence.isnan().sum().item()} of {len(confidence)} confidences are NaN")
    falling, order = confidence.detach().sort(descending=True)
    _, group, sizes = falling.unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(sizes), dtype=torch.float64, device=sizes.device)
    sums.index_add_(0, group, accuracy.to(sizes.device)[order])
    # items of equal confidence in any order: each counts as their mean
    expected = (sums / sizes)[group].cumsum(0)
    counts = torch.arange(1, len(group) + 1, device=sizes.device)
    return SelectiveAccuracy(coverage=counts / float(len(group)), accuracy=expected / counts)


def max_probability(probabilities: Tensor) -> Tensor:
    r"""Confidence in the top class, :math:`\max_c \bar p_c`.

    Args:
        probabilities: ``[items, classes]``, or samples of them ``[S, items, classes]``.

    Returns:
        ``[items]``.

    Raises:
        TypeError: Probabilities are no floats.
        ValueError: Wrong shape, NaN, or no probabilities.

    Example:
        >>> max_probability(torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]]))
        tensor([0.7500])
    """
    return mean_probabilities(probabilities).amax(-1)
