"""The bound of K draws, corrected by the jackknife: its value, its gap, and its doubly reparameterised gradient."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "CLIP",
    "LEAST_DRAWS",
    "EvidenceBound",
    "correction_of",
    "evidence_bound",
    "gradient_factors",
    "jackknife_gap",
]

CLIP = 0.3  # nats that the correction of an item approaches and never passes
LEAST_DRAWS = 4  # of a corrected bound


def correction_of(draws: int) -> Literal["jackknife"] | None:
    """Return the correction that so many draws allow, for commands that ask for draws alone.

    Example:
        >>> correction_of(16), correction_of(3)
        ('jackknife', None)
    """
    return "jackknife" if draws >= LEAST_DRAWS else None


class EvidenceBound(NamedTuple):
    """The bound of every item, and what the jackknife says of it.

    Attributes:
        value: Estimate of the log evidence in nats, ``[...]``, with its gradient.
        gap: What the bound of K draws lacks before it is corrected, in nats, ``[...]``, without gradient.
        remainder: The part of ``gap`` that the correction has not added, in nats, ``[...]``, without gradient.
    """

    value: Tensor
    gap: Tensor
    remainder: Tensor


def evidence_bound(log_weights: Tensor, *, corrected: bool) -> EvidenceBound:
    r"""Bound the log evidence of every item by K draws, and correct the bound by the jackknife over the draws.

    .. math:: L_K = \log \frac1K \sum_k w_k, \qquad
              C = (K - 1) \Bigl(L_K - \frac1K \sum_k L_{K - 1 \text{ without } k}\Bigr), \qquad
              L_K + c \tanh(C / c)

    The jackknife estimate :math:`L_K + C` lacks only terms of the order :math:`1 / K^2`. Where one draw has nearly all
    of the weight, C is large and says nothing but that; tanh keeps it below c = 0.3 nats, and leaves a small C as it
    is, up to terms of the order :math:`C^3`. The result rises with every weight, and is smooth.

    Args:
        log_weights: Log weights of the draws of every item ``[K, ...]``.
        corrected: Add the correction.

    Example:
        >>> weights = torch.tensor([1.0, 2.0, 3.0, 2.0])
        >>> bound = evidence_bound(weights.log(), corrected=True)
        >>> round(weights.mean().log().item(), 4), round(bound.value.item(), 4), round(bound.gap.item(), 4)
        (0.6931, 0.7361, 0.0432)

    Source: Nowozin (2018), Debiasing Evidence Approximations.
    """
    bound = log_weights.logsumexp(0) - math.log(len(log_weights))
    if not corrected:
        with torch.no_grad():
            gap = jackknife_gap(log_weights)
        return EvidenceBound(bound, gap, gap)
    gap = jackknife_gap(log_weights)
    correction = CLIP * (gap / CLIP).tanh()
    gap = gap.detach()
    return EvidenceBound(bound + correction, gap, gap - correction.detach())


def jackknife_gap(log_weights: Tensor) -> Tensor:
    r"""Estimate by how much the bound of K draws is too low, :math:`(K - 1) (L_K - \mathrm{mean}_k L_{K - 1})`.

    Args:
        log_weights: Log weights ``[K, ...]``.

    Returns:
        The gap of every item in nats, at least 0 ``[...]``.
    """
    count = len(log_weights)
    log_shares = _log_remaining_shares(log_weights.softmax(0))
    return (count - 1) * (math.log1p(-1 / count) - log_shares.mean(0))


def _log_remaining_shares(shares: Tensor) -> Tensor:
    """Log of the weight that is left without each draw, as a share of all ``[K, ...]``.

    Only the largest share can be above a half. What is left without it is summed and not subtracted from one, so that
    no digit is lost where it has nearly everything.
    """
    largest = shares.detach().argmax(0, keepdim=True)
    rest = shares.scatter(0, largest, 0.0)
    left = rest.sum(0, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    return torch.log1p(-rest).scatter(0, largest, left.log())


def gradient_factors(log_weights: Tensor, *, corrected: bool) -> Tensor:
    r"""By what the gradient that reaches a draw is multiplied, to be doubly reparameterised.

    Let the bound be :math:`B(l_1, \ldots, l_K)` of log weights :math:`l_k`. Its gradient reaches draw k with
    :math:`g_k = \partial B / \partial l_k`. The density of the draw is differentiated by the posterior's parameters,
    too; in expectation that is, by reparameterising once more, :math:`-\partial g_k / \partial l_k` along the path of
    the draw. So the density's own gradient is dropped and the draw's is multiplied by

    .. math:: \frac{g_k - \partial g_k / \partial l_k}{g_k}
              = p_k \, \frac{1 + h' (b_k - 1) - h'' (a_k - 1)^2}{1 + h' (a_k - 1)}, \qquad
              a_k = K - \tfrac{K - 1}{K} \sum_{i \ne k} \frac{1}{1 - p_i}, \quad
              b_k = K - \tfrac{K - 1}{K} \sum_{i \ne k} \frac{1}{(1 - p_i)^2}

    with the shares :math:`p` of the weights, and derivatives of :math:`h(C) = c \tanh(C / c)`. Uncorrected, it is
    :math:`p_k`.

    Args:
        log_weights: Log weights ``[K, ...]``.
        corrected: As of :func:`evidence_bound`.

    Returns:
        The factors ``[K, ...]``, without gradient.

    Source: Tucker et al. (2019), Doubly Reparameterized Gradient Estimators for Monte Carlo Objectives, equation (6).
    """
    shares = log_weights.detach().softmax(0)
    if not corrected:
        return shares
    count = len(shares)
    log_left = _log_remaining_shares(shares)
    slope_at = ((count - 1) * (math.log1p(-1 / count) - log_left.mean(0)) / CLIP).tanh()
    first, second = 1 - slope_at.square(), -2 * slope_at * (1 - slope_at.square()) / CLIP
    # where less is left, the first two are zero in single precision
    inverse = (-log_left).clamp(max=25.0).exp()
    a = count - (count - 1) / count * _sum_of_others(inverse) - 1
    b = count - (count - 1) / count * _sum_of_others(inverse.square()) - 1
    return shares * (1 + first * b - second * a.square()) / (1 + first * a)


def _sum_of_others(terms: Tensor) -> Tensor:
    return terms.sum(0) - terms
