"""Dirichlet attention weights, as a distribution over the logarithm of a point on the simplex."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import register_kl

from pyro_attention._checks import as_float
from pyro_attention.distributions.base import LogWeights
from pyro_attention.layout import Dense, Layout
from pyro_attention.ops.noise import log_standard_gamma
from pyro_attention.ops.special import lgamma_exp

__all__ = ["DirichletWeights", "kl_dirichlet"]


class DirichletWeights(LogWeights):
    r"""Log of Dirichlet weights: each row of keys is the logarithm of a point W on the simplex.

    .. math:: \log p(\log W) = \log\Gamma(a_0) + \sum_i a_i \log W_i - \log\Gamma(a_i), \quad a_0 = \sum_i a_i, \quad
              \mathrm{E}[W] = a / a_0

    A softmax over the keys leaves the value unchanged. The density is with respect to Lebesgue measure of the log
    ratios :math:`\log W_i - \log W_j`, whichever key j is: it treats all keys alike, and is torch's density of W times
    :math:`\prod_i W_i`. The entropy belongs to the same measure; the KL depends on none.

    Moments are per weight. Density and entropy hold one term a row, which is shared out in proportion to E[W], so that
    summed over the event they are right. Masked keys take part in nothing; a row without keys has weights of zero.

    Args:
        log_concentration: ``log a``, ``[..., heads, queries, keys]``, or without queries when these lie in a plate.
        options: ``layout`` (dense), ``shape`` and ``validate_args`` of :class:`LogWeights`.

    Raises:
        ValueError: The layout is no :class:`Dense`, or there are too few dimensions.

    Example:
        >>> p = DirichletWeights(torch.tensor([1.0, 3.0]).log().expand(1, 1, 2))
        >>> p.expected_weights.tolist(), round(p.rsample().exp().sum().item(), 4)
        ([[[0.25, 0.75]]], 1.0)

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2 (relaxed alignment).
    """

    kind: ClassVar[str] = "dirichlet"

    def __init__(self, log_concentration: Tensor, **options: Any) -> None:
        self.log_concentration = as_float(log_concentration)
        super().__init__(self.log_concentration, **options)
        if not isinstance(self.layout, Dense):
            raise ValueError(f"layout is a {type(self.layout).__name__}, expected Dense: a row of keys is a simplex")
        if self.layout.mask is not None:
            # a number that makes every moment one; it is never counted
            self.log_concentration = self.log_concentration.masked_fill(~self.layout.mask, 0)
        # a softmax over keys needs them all
        shape = torch.broadcast_shapes(self.log_concentration.shape, self.event_shape[-1:])
        self.log_concentration = self.log_concentration.expand(shape)

    @property
    def concentration(self) -> Tensor:
        """``a``."""
        return self.log_concentration.exp()

    @property
    def expected_weights(self) -> Tensor:
        """``E[W]``; masked keys have none."""
        return self.layout.softmax(self.log_concentration)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        log_concentration = self.log_concentration.expand(torch.Size(sample_shape) + self.full_shape)
        return self.layout.log_softmax(log_standard_gamma(log_concentration.exp(), log_concentration))

    @property
    def mean(self) -> Tensor:
        return _digamma_exp(self.log_concentration) - _digamma_exp(self._log_total)

    @property
    def variance(self) -> Tensor:
        return _trigamma_exp(self.log_concentration) - _trigamma_exp(self._log_total)

    @property
    def log_expected_weight(self) -> Tensor:
        return self.layout.log_softmax(self.log_concentration)

    @property
    def deterministic_value(self) -> Tensor:
        """The logarithm of ``E[W]``."""
        return self.mean_value

    @property
    def entropy_per_weight(self) -> Tensor:
        return self._log_normalizer - self.concentration * self.mean

    def log_density(self, value: Tensor) -> Tensor:
        return self.concentration * value - self._log_normalizer

    @property
    def _log_normalizer(self) -> Tensor:
        return lgamma_exp(self.log_concentration) - self.expected_weights * lgamma_exp(self._log_total)

    @property
    def _log_total(self) -> Tensor:
        return _log_total(self.log_concentration, self.layout)


def _log_total(log_concentration: Tensor, layout: Layout) -> Tensor:
    """``log a_0``, for every key; 0 where keys are masked."""
    return log_concentration - layout.log_softmax(log_concentration)


def _digamma_exp(x: Tensor) -> Tensor:
    return torch.digamma(1 + x.exp()) - (-x).exp()


def _trigamma_exp(x: Tensor) -> Tensor:
    return torch.polygamma(1, 1 + x.exp()) + (-2 * x).exp()


@register_kl(DirichletWeights, LogWeights)  # type: ignore[untyped-decorator]
def kl_dirichlet(q: DirichletWeights, p: LogWeights) -> Tensor:
    r"""KL between two Dirichlet distributions, summed over the rows of the event, in nats.

    .. math:: \sum_i \mathrm{KL}(\Gamma_{a_i} \| \Gamma_{b_i}) - \mathrm{KL}(\Gamma_{a_0} \| \Gamma_{b_0}), \quad
              \Gamma_a = \mathrm{Gamma}(a, 1)

    for independent Gamma variables are a Dirichlet point and, independent of it, their sum. Computed in float64, where
    the difference of two large terms keeps its digits.

    Args:
        q: Posterior.
        p: Prior. The result has q's batch shape and precision.

    Raises:
        NotImplementedError: p is no Dirichlet: weights that sum to one have no density under it.
        ValueError: The two have different event shapes.

    Example:
        >>> q, p = (DirichletWeights(torch.tensor(a).expand(1, 1, 3)) for a in (0.0, 1.0))
        >>> round(kl_dirichlet(q, p).item(), 4)
        0.9349

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, algorithm 2, for its use.
    """
    if not isinstance(p, DirichletWeights):
        raise NotImplementedError(f"KL of a Dirichlet from {type(p).__name__}, which gives a simplex no mass")
    if q.event_shape != p.event_shape:
        raise ValueError(f"KL between event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)}")
    log_a, log_b = q.log_concentration.double(), p.log_concentration.double()
    total = _kl_gamma(_log_total(log_a, q.layout), _log_total(log_b, p.layout))
    kl = q.sum_event(_kl_gamma(log_a, log_b) - q.layout.softmax(log_a) * total)
    return kl.to(q.log_concentration.dtype)


def _kl_gamma(log_a: Tensor, log_b: Tensor) -> Tensor:
    """KL between Gamma distributions of equal rate, from the logarithms of their shapes."""
    a, b, ratio = log_a.exp(), log_b.exp(), log_b - log_a
    return (a - b) * torch.digamma(1 + a) + torch.lgamma(1 + b) - torch.lgamma(1 + a) + torch.expm1(ratio) - ratio
