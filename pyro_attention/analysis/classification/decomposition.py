"""Where uncertainty comes from: entropy and mutual information, and variance by source of noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from pyro_attention.analysis.classification.inputs import check_probabilities
from pyro_attention.analysis.inputs import split_entropy
from pyro_attention.posterior.predictive import Prediction

__all__ = ["UncertaintyDecomposition", "VarianceSplit", "decompose_uncertainty", "split_variance"]


@dataclass(frozen=True)
class UncertaintyDecomposition:
    """Uncertainty of each item, in nats.

    Attributes:
        total: Entropy of the mean probabilities, ``[items]``.
        aleatoric: Mean entropy of the samples' probabilities, ``[items]``: what stays if the weights were known.
        mutual_information: Total minus aleatoric, >= 0, ``[items]``: how much the samples disagree.
    """

    total: Tensor
    aleatoric: Tensor
    mutual_information: Tensor


def decompose_uncertainty(probabilities: Tensor) -> UncertaintyDecomposition:
    r"""Split the predictive entropy, :math:`H[\bar p] = \frac1S \sum_s H[p^{(s)}] + I`.

    Args:
        probabilities: Samples ``[S, items, classes]``. A single one has a mutual information of 0.

    Raises:
        TypeError: Probabilities are no floats.
        ValueError: Wrong shape, NaN, or no probabilities.

    Example:
        >>> import torch
        >>> parts = decompose_uncertainty(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]]))
        >>> parts.total, parts.mutual_information
        (tensor([0.6931, 0.6931]), tensor([0.6931, 0.0000]))

    Source: Depeweg et al. (2018), Decomposition of Uncertainty in Bayesian Deep Learning, section 3.
    """
    samples = check_probabilities(probabilities, min_samples=1)
    return UncertaintyDecomposition(*split_entropy(samples))


@dataclass(frozen=True)
class VarianceSplit:
    """Predictive variance by source: ``total = attention + dropout + interaction``, each of the output's shape.

    The shares are ratios of sums over all entries; NaN when there is no variance at all. A variance of S samples is
    uncertain by about a fraction ``sqrt(2 / (S - 1))`` of itself in each entry, and the interaction, a difference,
    by more than that fraction of the total.

    Attributes:
        total: Variance with both sources.
        attention: Variance with attention noise alone.
        dropout: Variance with dropout alone.
        interaction: What remains; negative where one source dampens the other.
    """

    total: Tensor
    attention: Tensor
    dropout: Tensor
    interaction: Tensor

    @property
    def attention_share(self) -> float:
        """Share of attention noise in the total variance."""
        return self._share(self.attention)

    @property
    def dropout_share(self) -> float:
        """Share of dropout in the total variance."""
        return self._share(self.dropout)

    @property
    def interaction_share(self) -> float:
        """Share of the interaction in the total variance; may be negative."""
        return self._share(self.interaction)

    def _share(self, part: Tensor) -> float:
        total = self.total.double().sum().item()
        return part.double().sum().item() / total if total else math.nan


def split_variance(*, attention: Prediction, dropout: Prediction, both: Prediction) -> VarianceSplit:
    r"""Split a prediction's variance by source, :math:`V_{ad} = V_a + V_d + V_\mathrm{interaction}`.

    Args:
        attention: Result of ``predict(..., noise="attention")``.
        dropout: Result of ``predict(..., noise="dropout")``, of the same guide, arguments and transform.
        both: Result of ``predict(..., noise="both")``, likewise.

    Raises:
        TypeError: An argument is no Prediction.
        ValueError: A single sample, variances that are not finite, or predictions of different shapes.

    Example:
        >>> import torch
        >>> ones = torch.ones(3)
        >>> predictions = [Prediction(mean=ones, variance=v * ones, num_samples=100) for v in (3.0, 2.0, 4.0)]
        >>> split = split_variance(attention=predictions[0], dropout=predictions[1], both=predictions[2])
        >>> split.attention_share, split.dropout_share, split.interaction_share
        (0.75, 0.5, -0.25)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    for name, prediction in {"both": both, "attention": attention, "dropout": dropout}.items():
        if not isinstance(prediction, Prediction):
            raise TypeError(f"{name} is a {type(prediction).__name__}, expected the Prediction of predict(...)")
        if prediction.num_samples < 2:
            raise ValueError(f"{name} has {prediction.num_samples} sample, expected at least 2 for a variance")
        shape, expected = tuple(prediction.variance.shape), tuple(both.variance.shape)
        if shape != expected:
            raise ValueError(f"{name} has shape {shape}, both {expected}; expected predictions of the same items")
        if not prediction.variance.isfinite().all():
            raise ValueError(f"{name} has variances that are NaN or infinite, expected finite ones")
    return VarianceSplit(
        total=both.variance,
        attention=attention.variance,
        dropout=dropout.variance,
        interaction=both.variance - attention.variance - dropout.variance,
    )
