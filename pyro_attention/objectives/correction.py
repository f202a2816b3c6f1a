"""Bound by K draws, corrected by the jackknife: its value, its gap, and its doubly reparameterized gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "CLIP",
    "LEAST_DRAWS",
    "EvidenceBound",
    "GradientFactors",
    "correction_of",
    "evidence_bound",
    "gradient_factors",
    "jackknife_gap",
]

CLIP = 0.3  # nats that the correction of an item approaches and never passes
LEAST_DRAWS = 4  # of a corrected bound


def correction_of(draws: int) -> Literal["jackknife"] | None:
    """Return the correction that a number of draws allows, for commands that have no option of it.

    Example:
        >>> correction_of(16), correction_of(3)
        ('jackknife', None)
    """
    return "jackknife" if draws >= LEAST_DRAWS else None


@dataclass(frozen=True)
class EvidenceBound:
    """Bound of the log evidence of every item, with its gap by the jackknife, which is computed when it is read.

    Attributes:
        value: Estimate of the log evidence in nats, ``[...]``, with its gradient.
        log_importance_weights: Log importance weights of the draws ``[K, ...]``, without gradient.
        corrected: Whether the value is corrected.
    """

    value: Tensor
    log_importance_weights: Tensor
    corrected: bool

    @cached_property
    def gap(self) -> Tensor:
        """Gap between log evidence and bound of K draws before the correction, in nats, ``[...]``, without gradient."""
        return jackknife_gap(self.log_importance_weights)

    @property
    def remainder(self) -> Tensor:
        """Part of the gap that no correction has added, in nats, ``[...]``, without gradient."""
        return self.gap - CLIP * (self.gap / CLIP).tanh() if self.corrected else self.gap


def evidence_bound(log_importance_weights: Tensor, *, corrected: bool) -> EvidenceBound:
    r"""Bound the log evidence of every item by K draws, and correct the bound by the jackknife over the draws.

    .. math:: L_K = \log \frac1K \sum_k w_k, \qquad
              C = (K - 1) \Bigl(L_K - \frac1K \sum_k L_{K - 1 \text{ without } k}\Bigr), \qquad
              L_K + c \tanh(C / c)

    The jackknife estimate :math:`L_K + C` lacks only terms of the order :math:`1 / K^2`. Where one draw has nearly all
    of the weight, C is large and says nothing but that; tanh keeps it below c = 0.3 nats, and leaves a small C as it
    is, up to terms of the order :math:`C^3`. The result rises with every weight, and is smooth.

    Args:
        log_importance_weights: Log importance weights of the draws of every item ``[K, ...]``.
        corrected: Add the correction.

    Example:
        >>> weights = torch.tensor([1.0, 2.0, 3.0, 2.0])
        >>> bound = evidence_bound(weights.log(), corrected=True)
        >>> round(weights.mean().log().item(), 4), round(bound.value.item(), 4), round(bound.gap.item(), 4)
        (0.6931, 0.7142, 0.0211)

    Source: Nowozin (2018), Debiasing Evidence Approximations.
    """
    value = log_importance_weights.logsumexp(0) - math.log(len(log_importance_weights))
    if corrected:
        value = torch.add(value, (jackknife_gap(log_importance_weights) / CLIP).tanh(), alpha=CLIP)
    return EvidenceBound(value, log_importance_weights.detach(), corrected)


def jackknife_gap(log_importance_weights: Tensor) -> Tensor:
    r"""Estimate by how much the bound of K draws is too low, :math:`(K - 1) (L_K - \mathrm{mean}_k L_{K - 1})`.

    With the shares :math:`p` of the weights that is :math:`(K - 1) \log(1 - 1 / K) - (1 - 1 / K) \sum_k \log(1 - p_k)`.

    Args:
        log_importance_weights: Log importance weights ``[K, ...]``.

    Returns:
        The gap of every item in nats, at least 0 ``[...]``.
    """
    return _gap(len(log_importance_weights), *_without_largest(log_importance_weights.softmax(0))[1:])


def _without_largest(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split off the largest share.

    Returns:
        Its index ``[1, ...]``, the shares with zero in its place ``[K, ...]``, and their sum ``[...]``.

    Only the largest share can be above a half. What is left without it is summed and not subtracted from one, so that
    no digit is lost where it has nearly everything.
    """
    largest = shares.detach().max(0, keepdim=True).indices
    rest = shares.scatter(0, largest, 0.0)
    return largest, rest, rest.sum(0).clamp(min=torch.finfo(shares.dtype).tiny)


def _gap(count: int, rest: Tensor, left: Tensor) -> Tensor:
    logs = torch.log1p(-rest).sum(0) + left.log()
    return (count - 1) * math.log1p(-1 / count) - (1 - 1 / count) * logs


def gradient_factors(log_importance_weights: Tensor, *, corrected: bool) -> Tensor:
    r"""Compute the factors of the gradients that reach the draws, which make them doubly reparameterized.

    Let the bound be :math:`B(l_1, \ldots, l_K)` of log weights :math:`l_k`. Its gradient reaches draw k with
    :math:`g_k = \partial B / \partial l_k`. The density of the draw is differentiated by the posterior's parameters,
    too; in expectation that is, by reparameterizing once more, :math:`-\partial g_k / \partial l_k` along the path of
    the draw. So the density's own gradient is dropped and the draw's is multiplied by

    .. math:: \frac{g_k - \partial g_k / \partial l_k}{g_k}
              = p_k \, \frac{1 + h' (b_k - 1) - h'' (a_k - 1)^2}{1 + h' (a_k - 1)}, \qquad
              a_k = K - \tfrac{K - 1}{K} \sum_{i \ne k} \frac{1}{1 - p_i}, \quad
              b_k = K - \tfrac{K - 1}{K} \sum_{i \ne k} \frac{1}{(1 - p_i)^2}

    with the shares :math:`p` of the weights, and derivatives of :math:`h(C) = c \tanh(C / c)`. The denominator is
    positive, as the bound rises with every weight. Uncorrected, the factor is :math:`p_k`.

    Args:
        log_importance_weights: Log importance weights ``[K, ...]``.
        corrected: Whether the bound is corrected.

    Returns:
        The factors ``[K, ...]``, without gradient.

    Source: Tucker et al. (2019), Doubly Reparameterized Gradient Estimators for Monte Carlo Objectives, equation (6).
    """
    shares = log_importance_weights.detach().softmax(0)
    if not corrected:
        return shares
    count, (largest, rest, left) = len(shares), _without_largest(shares)
    tanh = (_gap(count, rest, left) / CLIP).tanh()
    slope = 1 - tanh.square()
    curvature = -2 * tanh * slope / CLIP
    # where less than that is left, the slope is zero in 32 bits
    inverse = (1 - rest).scatter(0, largest, left.unsqueeze(0)).clamp(min=1e-11).reciprocal()
    a, b = (count - (1 - 1 / count) * (terms.sum(0) - terms) for terms in (inverse, inverse.square()))
    return shares * (1 + slope * (b - 1) - curvature * (a - 1).square()) / (1 + slope * (a - 1))


class GradientFactors:
    """Lazy :func:`gradient_factors` of all draws, computed when the first gradient reads some of them."""

    def __init__(self, log_importance_weights: Tensor, *, corrected: bool) -> None:
        self._log_importance_weights, self._corrected = log_importance_weights.detach(), corrected

    @cached_property
    def _all(self) -> Tensor:
        return gradient_factors(self._log_importance_weights, corrected=self._corrected)

    def __getitem__(self, index: slice | int) -> Tensor:
        return self._all[index]
