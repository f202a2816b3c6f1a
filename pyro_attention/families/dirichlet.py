"""Dirichlet family of relaxed alignments: distribution over a point on the simplex, prior and posterior."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints, register_kl

from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, PRIORS, Family, Prior
from pyro_attention.families.distribution import AttentionDistribution, ContinuousWeights, of_one_batch
from pyro_attention.layout import Dense, Layout
from pyro_attention.ops.special import digamma_exp, lgamma_exp, log_standard_gamma, trigamma_exp

__all__ = ["Dirichlet", "DirichletPrior", "DirichletWeights", "kl_dirichlet"]

LARGEST_SCORE = 10.0


class _LogSimplex(constraints.Constraint):
    """Logarithms of points on the simplex, one a row of keys; masked entries may be anything."""

    def __init__(self, layout: Layout, event_dim: int) -> None:
        self.layout, self.event_dim = layout, event_dim
        super().__init__()

    def check(self, value: Tensor) -> Tensor:
        mask = self.layout.mask
        shown = value if mask is None else value.masked_fill(~mask, 0)
        close = torch.isclose(shown, self.layout.log_softmax(value), rtol=1e-4, atol=1e-4)
        return close.flatten(-self.event_dim).all(-1)


class DirichletWeights(ContinuousWeights):
    r"""Log of Dirichlet weights: each row of keys is the logarithm of a point W on the simplex.

    .. math:: \log p(\log W) = \log\Gamma(a_0) + \sum_i a_i \log W_i - \log\Gamma(a_i), \quad a_0 = \sum_i a_i, \quad
              \mathrm{E}[W] = a / a_0

    Density and entropy are with respect to Lebesgue measure of the log ratios :math:`\log W_i - \log W_j`, whichever
    key j is: torch's density of W times :math:`\prod_i W_i`. They hold one term a row, which is shared out among its
    weights in proportion to E[W]. Masked keys take part in nothing; a row without keys has weights of zero.

    Args:
        log_concentration: ``log a``, ``[..., heads, queries, keys]``, or without queries when these lie in a plate.
        layout: Dense without a mask by default; on a graph each node's in-edges are a row.
        shape: Full shape, as in :class:`ContinuousWeights`.
        validate_args: Whether to check values.

    Raises:
        ValueError: As for :class:`ContinuousWeights`.

    Example:
        >>> p = DirichletWeights(torch.tensor([1.0, 3.0]).log().expand(1, 1, 2))
        >>> p.mean_value.exp().tolist(), round(p.rsample().exp().sum().item(), 4)
        ([[[0.25, 0.75]]], 1.0)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2 (relaxed alignment).
    """

    kind: ClassVar[str] = "dirichlet"
    log_concentration: Tensor

    def __init__(
        self,
        log_concentration: Tensor,
        *,
        layout: Layout | None = None,
        shape: torch.Size | None = None,
        validate_args: bool | None = None,
    ) -> None:
        layout = Dense() if layout is None else layout
        if layout.mask is not None:
            # a number that makes every moment one; it is never counted
            log_concentration = log_concentration.masked_fill(~layout.mask, 0)
        super().__init__(log_concentration=log_concentration, layout=layout, shape=shape, validate_args=validate_args)
        # a softmax over keys needs them all
        shape = torch.broadcast_shapes(self.log_concentration.shape, self.event_shape[-1:])
        self.log_concentration = self.log_concentration.expand(shape)

    @property
    def support(self) -> constraints.Constraint:
        return _LogSimplex(self.layout, len(self.event_shape))

    @property
    def concentration(self) -> Tensor:
        """Concentration ``a``."""
        return self.log_concentration.exp()

    @property
    def mean_value(self) -> Tensor:
        return self.layout.log_softmax(self.log_concentration).expand(self.full_shape)

    def draw(self, shape: torch.Size) -> Tensor:
        log_concentration = self.log_concentration.expand(shape)
        return self.layout.log_softmax(log_standard_gamma(log_concentration.exp(), log_concentration))

    @property
    def mean(self) -> Tensor:
        return digamma_exp(self.log_concentration) - digamma_exp(self._log_total)

    @property
    def variance(self) -> Tensor:
        return trigamma_exp(self.log_concentration) - trigamma_exp(self._log_total)

    @property
    def entropy_per_weight(self) -> Tensor:
        return self._log_normalizer - self.concentration * self.mean

    def log_density(self, value: Tensor) -> Tensor:
        return self.concentration * value - self._log_normalizer

    @property
    def _log_normalizer(self) -> Tensor:
        share = self.layout.softmax(self.log_concentration)
        return lgamma_exp(self.log_concentration) - share * lgamma_exp(self._log_total)

    @property
    def _log_total(self) -> Tensor:
        return _log_total(self.log_concentration, self.layout)


def _log_total(log_concentration: Tensor, layout: Layout) -> Tensor:
    """Return ``log a_0``, for every key; 0 where keys are masked."""
    return log_concentration - layout.log_softmax(log_concentration)


@register_kl(DirichletWeights, DirichletWeights)
def kl_dirichlet(q: DirichletWeights, p: DirichletWeights) -> Tensor:
    r"""Return the KL between two Dirichlet distributions, summed over the rows of the event, in nats.

    .. math:: \sum_i \mathrm{KL}(\Gamma_{a_i} \| \Gamma_{b_i}) - \mathrm{KL}(\Gamma_{a_0} \| \Gamma_{b_0}), \quad
              \Gamma_a = \mathrm{Gamma}(a, 1)

    for independent Gamma variables are a Dirichlet point and, independent of it, their sum. Computed in float64, where
    the difference of two large terms keeps its digits.

    Example:
        >>> q, p = (DirichletWeights(torch.tensor(a).expand(1, 1, 3)) for a in (0.0, 1.0))
        >>> round(kl_dirichlet(q, p).item(), 4)
        0.9349

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, algorithm 2, for its use.
    """
    q, p = of_one_batch(q, p)
    log_a, log_b = q.log_concentration.double(), p.log_concentration.double()
    total = _kl_gamma(_log_total(log_a, q.layout), _log_total(log_b, p.layout))
    kl = q.sum_event(_kl_gamma(log_a, log_b) - q.layout.softmax(log_a) * total)
    return kl.to(q.log_concentration.dtype)


def _kl_gamma(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return the KL between Gamma distributions of equal rate, from the logarithms of their shapes."""
    a, b, ratio = log_a.exp(), log_b.exp(), log_b - log_a
    return (a - b) * torch.digamma(1 + a) + torch.lgamma(1 + b) - torch.lgamma(1 + a) + torch.expm1(ratio) - ratio


@PRIORS.register("dirichlet")
class DirichletPrior(Prior):
    r"""Prior of a relaxed alignment with the attention scores: :math:`W \sim \mathrm{Dirichlet}(\exp\Phi)`.

    Their size is the prior's strength, so they enter raw, clamped to [-10, 10].

    Example:
        >>> DirichletPrior()(AttentionCall(scores=torch.zeros(2, 1, 3), layout=Dense(event_dim=2))).concentration.shape
        torch.Size([2, 1, 3])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2; the clamp is in its code.
    """

    kind = DirichletWeights.kind
    normalizes = False

    def forward(self, call: AttentionCall) -> DirichletWeights:
        return DirichletWeights(_clamp(call.scores), layout=call.layout)


@FAMILIES.register("dirichlet")
class Dirichlet(Family):
    r"""Dirichlet posterior of a relaxed alignment: concentration :math:`\exp\Phi`, scores clamped to [-10, 10].

    By itself q is the prior (Jensen's bound, whose KL is zero); with :class:`Amortized` its scores come from an
    inference network, and a warm start on Jensen's bound keeps it from settling at the uniform distribution.

    Example:
        >>> Dirichlet().kind
        'dirichlet'

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 3, algorithm 2.
    """

    kind = DirichletWeights.kind

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> DirichletWeights:
        return DirichletWeights(_clamp(call.scores), layout=call.layout, shape=prior.full_shape)


def _clamp(scores: Tensor) -> Tensor:
    return scores.clamp(-LARGEST_SCORE, LARGEST_SCORE)
