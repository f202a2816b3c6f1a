"""Weibull, LogNormal and Gamma attention weights, as distributions over ``log S``."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.families.distribution import LogWeights
from pyro_attention.ops.noise import log_exponential, log_standard_gamma
from pyro_attention.ops.special import lgamma_and_exp, lgamma_exp
from pyro_attention.ops.transforms import in_transform

__all__ = ["GammaWeights", "LogNormalWeights", "WeibullWeights"]

EULER_GAMMA = 0.57721566490153286


class WeibullWeights(LogWeights):
    r"""Log of Weibull weights: :math:`\log S = \log\lambda + \tfrac1k \log E`, E standard exponential.

    .. math:: \log \mathrm{E}[S] = \log\lambda + \log\Gamma(1 + 1/k), \quad
              \mathrm{E}[\log S] = \log\lambda - \gamma/k, \quad
              \mathrm{Var}[\log S] = \pi^2 / 6k^2, \quad \mathrm{H}[\log S] = 1 + \gamma - \log k

    Args:
        log_scale: :math:`\log\lambda`, broadcastable to batch + event.
        concentration: ``k > 0``, broadcastable to batch + event.
        options: ``layout``, ``shape`` and ``validate_args`` of :class:`ContinuousWeights`, ``proposal`` of
            :class:`LogWeights`.

    Raises:
        ValueError: The concentration is not positive, a parameter is not finite, or there are too few dimensions.

    Example:
        >>> q = WeibullWeights(torch.zeros(2, 3, 4), torch.tensor(10.0))
        >>> q.batch_shape, q.event_shape
        (torch.Size([]), torch.Size([2, 3, 4]))

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    positive: ClassVar[tuple[str, ...]] = ("concentration",)

    def __init__(self, log_scale: Tensor, concentration: Tensor, **options: Any) -> None:
        self.log_scale, self.concentration = as_float(log_scale), as_float(concentration)
        super().__init__(log_scale=self.log_scale, concentration=self.concentration, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        noise = log_exponential(shape, dtype=self.log_scale.dtype, device=self.log_scale.device)
        if self.concentration.requires_grad or in_transform(self.log_scale):
            return self.from_noise(noise)
        return noise.div_(self.concentration).add_(self.log_scale)  # in place, as nothing needs the noise

    def from_noise(self, noise: Tensor) -> Tensor:
        """The value that a log standard exponential draw becomes."""
        return torch.addcdiv(self.log_scale, noise, self.concentration)

    @property
    def mean(self) -> Tensor:
        return self.log_scale - EULER_GAMMA / self.concentration

    @property
    def mean_gap(self) -> Tensor:
        return EULER_GAMMA / self.concentration + torch.lgamma(1 + self.concentration.reciprocal())

    @property
    def variance(self) -> Tensor:
        return math.pi**2 / 6 / self.concentration.square()

    @cached_property
    def log_expected_weight(self) -> Tensor:  # type: ignore[override]
        """``log E[S]``, per weight."""
        if self._known_mean is not None:
            return self._known_mean.scores
        return self.log_scale + torch.lgamma(1 + self.concentration.reciprocal())

    @property
    def entropy_per_weight(self) -> Tensor:
        return 1 + EULER_GAMMA - self.concentration.log()

    def log_density(self, value: Tensor) -> Tensor:
        standard = self.concentration * (value - self.log_scale)
        return self.concentration.log() + standard - standard.exp()


class LogNormalWeights(LogWeights):
    r"""Log of LogNormal weights: :math:`\log S \sim \mathrm{Normal}(m, s)`; posterior or prior.

    .. math:: \log \mathrm{E}[S] = m + s^2/2, \quad \mathrm{H}[\log S] = \tfrac12 \log(2\pi e) + \log s

    Args:
        loc: ``m``, broadcastable to batch + event.
        scale: ``s > 0``, broadcastable to batch + event.
        options: ``layout``, ``shape`` and ``validate_args`` of :class:`ContinuousWeights`, ``proposal`` of
            :class:`LogWeights`.

    Raises:
        ValueError: The scale is not positive, a parameter is not finite, or there are too few dimensions.

    Example:
        >>> p = LogNormalWeights(torch.zeros(1, 1, 4), torch.tensor(1.0))
        >>> p.log_expected_weight.tolist()
        [[[0.5, 0.5, 0.5, 0.5]]]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    positive: ClassVar[tuple[str, ...]] = ("scale",)

    def __init__(self, loc: Tensor, scale: Tensor, **options: Any) -> None:
        self.loc, self.scale = as_float(loc), as_float(scale)
        super().__init__(loc=self.loc, scale=self.scale, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        return self.from_noise(torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device))

    def from_noise(self, noise: Tensor) -> Tensor:
        """The value that a standard normal draw becomes."""
        return torch.addcmul(self.loc, noise, self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    @property
    def mean_gap(self) -> Tensor:
        return self.scale.square() / 2

    @cached_property
    def log_expected_weight(self) -> Tensor:  # type: ignore[override]
        """``log E[S]``, per weight."""
        if self._known_mean is not None:
            return self._known_mean.scores
        return self.loc + self.scale.square() / 2

    @property
    def entropy_per_weight(self) -> Tensor:
        return 0.5 * math.log(2 * math.pi * math.e) + self.scale.log()

    def log_density(self, value: Tensor) -> Tensor:
        standard = (value - self.loc) / self.scale
        return -0.5 * standard.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        r""":math:`\sum \log s + \tfrac12\log 2\pi + (\mathrm{Var}_q[\log S] + (\mathrm{E}_q[\log S]-m)^2)/2s^2`."""
        precision = self.scale.square().reciprocal() / 2
        constant = self.sum_event(self.scale.log() + 0.5 * math.log(2 * math.pi))
        return (
            constant + self.sum_event(q.variance * precision) + self.sum_event((q.mean - self.loc).square() * precision)
        )


class GammaWeights(LogWeights):
    r"""Log of Gamma weights, S ~ Gamma(a, rate b); posterior or prior, exact down to vanishing shapes.

    .. math:: \log p(\log S) = a \log S - b S + a \log b - \log\Gamma(a), \quad
              \mathrm{E}[\log S] = \psi(a) - \log b, \quad \mathrm{Var}[\log S] = \psi'(a)

    The parameters are logarithms because a contextual shape is a softmax over many keys, which may underflow:
    :math:`\log\Gamma(a) = \log\Gamma(1 + a) - \log a` needs only ``log a``.

    Args:
        log_concentration: ``log a``, broadcastable to batch + event.
        log_rate: ``log b``, broadcastable to batch + event.
        options: ``layout``, ``shape`` and ``validate_args`` of :class:`ContinuousWeights`, ``proposal`` of
            :class:`LogWeights`.

    Raises:
        ValueError: A parameter is not finite, or there are too few dimensions.

    Example:
        >>> p = GammaWeights(torch.tensor(2.0).log().expand(1, 1, 4), torch.tensor(4.0).log())
        >>> p.log_expected_weight.exp().flatten().tolist()
        [0.5, 0.5, 0.5, 0.5]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    def __init__(self, log_concentration: Tensor, log_rate: Tensor, **options: Any) -> None:
        self.log_concentration, self.log_rate = as_float(log_concentration), as_float(log_rate)
        super().__init__(log_concentration=self.log_concentration, log_rate=self.log_rate, **options)

    @property
    def concentration(self) -> Tensor:
        """Shape ``a``."""
        return self.log_concentration.exp()

    def draw(self, shape: torch.Size) -> Tensor:
        log_concentration = self.log_concentration.expand(shape)
        return log_standard_gamma(log_concentration.exp(), log_concentration) - self.log_rate

    @property
    def mean(self) -> Tensor:
        return torch.digamma(1 + self.concentration) - (-self.log_concentration).exp() - self.log_rate

    @property
    def variance(self) -> Tensor:
        return torch.polygamma(1, 1 + self.concentration) + (-2 * self.log_concentration).exp()

    @property
    def mean_gap(self) -> Tensor:
        return self.log_concentration + (-self.log_concentration).exp() - torch.digamma(1 + self.concentration)

    @cached_property
    def log_expected_weight(self) -> Tensor:  # type: ignore[override]
        """``log E[S]``, per weight."""
        if self._known_mean is not None:
            return self._known_mean.scores
        return self.log_concentration - self.log_rate

    @property
    def entropy_per_weight(self) -> Tensor:
        a = self.concentration
        return a + 1 - a * torch.digamma(1 + a) + lgamma_exp(self.log_concentration)

    def log_density(self, value: Tensor) -> Tensor:
        scaled = value + self.log_rate
        return self.concentration * scaled - scaled.exp() - lgamma_exp(self.log_concentration)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        r""":math:`\sum \log\Gamma(a) - a\,(\mathrm{E}_q[\log S] + \log b) + b\,\mathrm{E}_q[S]`."""
        log_gamma, a = lgamma_and_exp(self.log_concentration)
        log_mean = q.log_expected_weight
        linear = self.sum_products(log_mean, a) + self.sum_products(a, self.log_rate - q.mean_gap)
        if q.expected_total is not None and self.log_rate.numel() == 1:
            expected = q.expected_total * self.log_rate.exp().reshape(())
        else:
            expected = self.sum_event((log_mean + self.log_rate).exp_())
        return self.sum_event(log_gamma) - linear + expected
