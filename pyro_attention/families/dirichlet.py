"""Relaxed alignments: a Dirichlet prior whose concentration is the exponential of the scores, and its posterior."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.families.dirichlet_weights import DirichletWeights
from pyro_attention.families.prior import PRIORS, Prior
from pyro_attention.layout import Layout

__all__ = ["Dirichlet", "DirichletPrior"]

LARGEST_SCORE = 10.0


@PRIORS.register("dirichlet")
class DirichletPrior(Prior):
    r"""The attention scores are the prior of a relaxed alignment: :math:`W \sim \mathrm{Dirichlet}(\exp\Phi)`.

    Their size is the prior's strength, so they enter raw, clamped to [-10, 10].

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
        >>> DirichletPrior()(torch.zeros(2, 1, 3), None, Dense(event_dim=2)).concentration.shape
        torch.Size([2, 1, 3])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2; the clamp is in its code.
    """

    kind: ClassVar[str] = DirichletWeights.kind
    normalizes = False
    over_queries_obstacle = "each query's weights are by themselves a point on the simplex"

    def forward(self, scores: Tensor, keys: Tensor | None, layout: Layout) -> DirichletWeights:  # noqa: ARG002
        return DirichletWeights(_clamp(scores), layout=layout)


@FAMILIES.register("dirichlet")
class Dirichlet(Family):
    r"""Dirichlet posterior of a relaxed alignment: concentration :math:`\exp\Phi`, scores clamped to [-10, 10].

    By itself q is the prior (Jensen's bound, whose KL is zero); with :class:`Amortised` its scores come from an
    inference network, and a warm start on Jensen's bound keeps it from settling at the uniform distribution.

    Example:
        >>> Dirichlet().kind
        'dirichlet'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3, algorithm 2.
    """

    kind: ClassVar[str] = DirichletWeights.kind

    def posterior(self, prior: Any) -> DirichletWeights:
        return DirichletWeights(_clamp(prior.proposal.scores), layout=prior.layout, shape=prior.full_shape)


def _clamp(scores: Tensor) -> Tensor:
    return scores.clamp(-LARGEST_SCORE, LARGEST_SCORE)
