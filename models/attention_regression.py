"""Regression by one attention with plain ``pyro.sample`` statements, for guides that are functions."""

from __future__ import annotations

import math
from typing import Literal, get_args

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

__all__ = ["AttentionRegression", "Latent"]

Latent = Literal["positive", "simplex", "index"]


class AttentionRegression(nn.Module):
    r"""Regression model in which every item attends to a memory, and observes the attended value with noise.

    .. math:: p(y, S \mid x) = \prod_i p(S_i \mid x_i)\, \mathrm{Normal}\Bigl(y_i; \sum_n W_{in} v_{in}, \sigma\Bigr),
              \qquad \Phi_{in} = (U x_i) \cdot k_{in} / \sqrt d

    ============== ========================================== ===================================
    latent         site ``attention``                         weights W
    ============== ========================================== ===================================
    ``"positive"`` S ~ Gamma(1, 1) for every key              S / sum of S
    ``"simplex"``  W ~ Dirichlet(exp(scores))                 W
    ``"index"``    z ~ Categorical(softmax(scores))           1 at key z, else 0
    ============== ========================================== ===================================

    The model uses only torch and Pyro. It shows what an attention site is in Pyro, and every inference algorithm of
    Pyro can run it. The B items lie in the plate ``data``. The guides in ``guides/plain.py`` fit it.

    Args:
        width: Width d of queries and keys.
        latent: Variable of the site ``attention``, as in the table.
        noise: Initial standard deviation of y given the weights, which is trained.

    Raises:
        ValueError: ``latent`` is unknown.

    Example:
        >>> model = AttentionRegression(3, latent="index")
        >>> model(torch.zeros(2, 3), torch.zeros(2, 5, 3), torch.zeros(2, 5)).shape
        torch.Size([2])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2, for the simplex and the index;
    Fan et al. (2020), Bayesian Attention Modules, section 3, for positive weights.
    """

    def __init__(self, width: int, latent: Latent = "positive", *, noise: float = 0.5) -> None:
        super().__init__()
        if latent not in get_args(Latent):
            raise ValueError(f"latent is {latent!r}, expected one of {', '.join(get_args(Latent))}")
        self.latent: Latent = latent
        self.query = nn.Linear(width, width, bias=False)
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise)))

    def scores(self, x: Tensor, keys: Tensor) -> Tensor:
        """Return the scores ``[B, N]`` of the keys ``[B, N, d]`` for the items ``[B, d]``."""
        return (keys @ self.query(x).unsqueeze(-1)).squeeze(-1) / math.sqrt(x.size(-1))

    def prior(self, scores: Tensor) -> dist.TorchDistribution:
        """Return the prior of the site ``attention``, given the scores."""
        if self.latent == "positive":
            return dist.Gamma(torch.ones_like(scores), torch.ones_like(scores)).to_event(1)
        if self.latent == "simplex":
            return dist.Dirichlet(scores.exp())
        return dist.Categorical(logits=scores)

    def weights(self, value: Tensor, keys: int) -> Tensor:
        """Return the weights ``[..., N]`` of a value of the site ``attention``."""
        if self.latent == "positive":
            return value / value.sum(-1, keepdim=True)
        return value if self.latent == "simplex" else one_hot(value, keys).to(self.log_noise.dtype)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, y: Tensor | None = None) -> Tensor:
        """Observe or draw y ``[B]`` given items ``[B, d]``, keys ``[B, N, d]`` and values ``[B, N]``, and return it."""
        pyro.module("attention_regression", self)
        with pyro.plate("data", len(x)):
            attention = pyro.sample("attention", self.prior(self.scores(x, keys)))
            mean = (self.weights(attention, keys.size(-2)) * values).sum(-1)
            return torch.as_tensor(pyro.sample("y", dist.Normal(mean, self.log_noise.exp()), obs=y))
