"""Problems whose attention weights are known, with noise in the attention: its spread, and the distribution of y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

__all__ = ["DEVELOPMENT", "PROBLEMS", "Problem", "normal"]


def normal(mean: Tensor, noise: Any) -> Any:
    """Return the distribution of independent normal entries of y."""
    return dist.Normal(mean, noise).to_event(1)


def _same(values: Tensor) -> Tensor:
    return values


def _laplace(mean: Tensor, noise: Any) -> Any:
    return dist.Laplace(mean, noise).to_event(1)


def _poisson(mean: Tensor, _: Any) -> Any:
    return dist.Poisson(mean).to_event(1)


def _binomial(mean: Tensor, _: Any) -> Any:
    return dist.Binomial(10, probs=mean).to_event(1)


def _gamma(mean: Tensor, _: Any) -> Any:
    return dist.Gamma(5.0, 5.0 / mean).to_event(1)


def _one_class(mean: Tensor, _: Any) -> Any:
    return dist.OneHotCategorical(probs=mean)


def _multinomial(mean: Tensor, _: Any) -> Any:
    return dist.Multinomial(20, probs=mean)


def _probabilities(numbers: Tensor) -> Tensor:
    return (1.5 * numbers).softmax(-1)


@dataclass(frozen=True)
class Problem:
    r"""Weights :math:`W = \mathrm{softmax}(q^\top k + s(u)\,\epsilon)` with normal noise, and y around :math:`W V`.

    Attributes:
        keys: Number of keys of an item.
        width: Number of entries of a value, and of y.
        spread: The standard deviation s of log S, from the observed u, which is the last entry of a query.
        likelihood: Distribution of y, from its mean ``[..., width]`` and its noise.
        noise: The true noise of y; None where the likelihood has none.
        values: What standard normal numbers ``[..., width]`` are turned into, to be values.
        common: Share of the variance of the keys that all keys of an item have in common: scores are correlated by it.
    """

    keys: int
    width: int
    spread: Callable[[Tensor], Tensor]
    likelihood: Callable[[Tensor, Any], Any]
    noise: float | None = None
    values: Callable[[Tensor], Tensor] = _same
    common: float = 0.0


# The correction of EvidenceELBO and the threshold of its warning were chosen on these.
DEVELOPMENT = {
    "binomial": Problem(8, 3, lambda u: 0.2 + 1.4 * (u.clamp(-2, 2) + 2) / 4, _binomial, values=torch.sigmoid),
    "laplace": Problem(5, 2, lambda u: 0.6 * (0.5 * u).exp(), _laplace, 0.2),
    "gamma": Problem(10, 3, lambda u: 0.8 + 0.5 * (3 * u).tanh(), _gamma, values=torch.exp),
    "sharp": Problem(6, 4, lambda u: 0.9 + 0.6 * (2 * u).sin(), normal, 0.05),
    "classes": Problem(16, 5, lambda u: 0.5 + 1.5 * (1.5 * u).sigmoid(), _one_class, values=_probabilities),
}
# These were not looked at before.
_REPORTED = {
    "multinomial": Problem(12, 4, lambda u: 0.2 + 1.6 * (2 * u).sigmoid(), _multinomial, values=_probabilities),
    "poisson": Problem(6, 3, lambda u: 0.3 + 0.3 * (u.clamp(-2, 2) + 2), _poisson, values=torch.exp),
    "correlated": Problem(12, 4, lambda u: 0.2 + 1.2 * (1 - u.abs() / 2).clamp(min=0), normal, 0.1, common=0.5),
}
PROBLEMS = DEVELOPMENT | _REPORTED
