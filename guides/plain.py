"""Four guides as plain Pyro functions, for stock ``SVI``, ``TraceMeanField_ELBO`` and ``TraceEnum_ELBO``.

They are guides of ``models/attention_regression.py``, or of any model with its method ``scores`` and its arguments. The
first argument is the model: ``SVI(model, partial(weibull, model), optimizer, TraceMeanField_ELBO())``.

An :class:`pyro_attention.AttentionGuide` does the same for every model, in one run of the network. These functions show
that it is an ordinary Pyro guide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import ELBO, TraceEnum_ELBO, TraceMeanField_ELBO
from torch import Tensor

import pyro_attention  # noqa: F401  # registers the KL between torch's Weibull, LogNormal and Gamma

__all__ = ["PLAIN_SCHEMES", "PlainScheme", "categorical", "dirichlet", "lognormal", "weibull"]


class ModelWithScores(Protocol):
    """Model whose attention has scores ``[B, N]`` of the keys for every item."""

    def scores(self, x: Tensor, keys: Tensor) -> Tensor: ...


def weibull(model: ModelWithScores, x: Tensor, keys: Tensor, values: Tensor, y: Tensor | None = None) -> None:
    r"""Draw positive weights, :math:`S \sim \mathrm{Weibull}(k, \lambda)` with :math:`\mathrm{E}[S] = \exp(\Phi)`.

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """
    k = pyro.param("concentration", torch.tensor(10.0, device=x.device), constraint=constraints.positive)
    scores = model.scores(x, keys).log_softmax(-1)
    with pyro.plate("data", len(x)):
        scale = (scores - torch.lgamma(1 + 1 / k)).exp()
        pyro.sample("attention", dist.Weibull(scale, k.expand(scale.shape)).to_event(1))


def lognormal(model: ModelWithScores, x: Tensor, keys: Tensor, values: Tensor, y: Tensor | None = None) -> None:
    r"""Draw positive weights, :math:`S \sim \mathrm{LogNormal}(\Phi - s^2/2, s)`, whose mean is :math:`\exp(\Phi)`.

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """
    s = pyro.param("scale", torch.tensor(0.5, device=x.device), constraint=constraints.positive)
    scores = model.scores(x, keys).log_softmax(-1)
    with pyro.plate("data", len(x)):
        pyro.sample("attention", dist.LogNormal(scores - s.square() / 2, s.expand(scores.shape)).to_event(1))


def dirichlet(model: ModelWithScores, x: Tensor, keys: Tensor, values: Tensor, y: Tensor | None = None) -> None:
    r"""Draw weights on the simplex, :math:`W \sim \mathrm{Dirichlet}(\exp \Psi)`, with scores of :func:`informed`.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3 (relaxed alignment).
    """
    scores = informed(model.scores(x, keys), values, y)
    with pyro.plate("data", len(x)):
        pyro.sample("attention", dist.Dirichlet(scores.exp()))


def categorical(model: ModelWithScores, x: Tensor, keys: Tensor, values: Tensor, y: Tensor | None = None) -> None:
    r"""Enumerate the key, :math:`z \sim \mathrm{Categorical}(\mathrm{softmax}(\Psi))`, with scores of :func:`informed`.

    This is the exact posterior if the closeness is :math:`1 / (2 \sigma^2)`.

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3.
    """
    scores = informed(model.scores(x, keys), values, y)
    with pyro.plate("data", len(x)):
        pyro.sample("attention", dist.Categorical(logits=scores), infer={"enumerate": "parallel"})


def informed(scores: Tensor, values: Tensor, y: Tensor | None) -> Tensor:
    r"""Return scores that depend on the observation, :math:`\Psi_{in} = \Phi_{in} - c\,(y_i - v_{in})^2`.

    The closeness c is trained. Without an observation the scores are those of the prior.
    """
    closeness = pyro.param("closeness", torch.tensor(0.5, device=scores.device), constraint=constraints.positive)
    return scores if y is None else scores - closeness * (y.unsqueeze(-1) - values).square()


@dataclass(frozen=True)
class PlainScheme:
    """Latent variable, guide and stock objective that belong together.

    Attributes:
        latent: Variable of the site ``attention``, an argument of the model.
        guide: The guide, whose first argument is the model.
        objective: Class of the objective.
    """

    latent: str
    guide: Callable[..., None]
    objective: type[ELBO]


PLAIN_SCHEMES: Mapping[str, PlainScheme] = {
    "weibull": PlainScheme("positive", weibull, TraceMeanField_ELBO),
    "lognormal": PlainScheme("positive", lognormal, TraceMeanField_ELBO),
    "dirichlet": PlainScheme("simplex", dirichlet, TraceMeanField_ELBO),
    "categorical": PlainScheme("index", categorical, TraceEnum_ELBO),
}
"""The four guides by name, with their latent variable and their objective of stock Pyro."""
