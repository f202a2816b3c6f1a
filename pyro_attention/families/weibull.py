"""The Weibull family: its distribution over ``log S``, and its posterior."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor, nn

from pyro_attention._checks import in_transform
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, OneParameterFamily
from pyro_attention.families.distribution import AttentionDistribution, LogWeights, WeightsOptions, around_scores
from pyro_attention.ops.noise import log_exponential

__all__ = ["Weibull", "WeibullWeights"]

EULER_GAMMA = 0.57721566490153286


class WeibullWeights(LogWeights):
    r"""Log of Weibull weights: :math:`\log S = \log\lambda + \tfrac1k \log E`, E standard exponential.

    .. math:: \log \mathrm{E}[S] = \log\lambda + \log\Gamma(1 + 1/k), \quad
              \mathrm{E}[\log S] = \log\lambda - \gamma/k, \quad
              \mathrm{Var}[\log S] = \pi^2 / 6k^2, \quad \mathrm{H}[\log S] = 1 + \gamma - \log k

    Args:
        log_scale: :math:`\log\lambda`, broadcastable to batch + event.
        concentration: ``k > 0``, broadcastable to batch + event.
        options: Options of :class:`LogWeights`.

    Example:
        >>> q = WeibullWeights(torch.zeros(2, 3, 4), torch.tensor(10.0))
        >>> q.batch_shape, q.event_shape
        (torch.Size([]), torch.Size([2, 3, 4]))

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    log_scale: Tensor
    concentration: Tensor

    def __init__(self, log_scale: Tensor, concentration: Tensor, **options: Unpack[WeightsOptions]) -> None:
        super().__init__(log_scale=log_scale, concentration=concentration, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        noise = log_exponential(shape, dtype=self.log_scale.dtype, device=self.log_scale.device)
        if self.concentration.requires_grad or in_transform(self.log_scale):
            return torch.addcdiv(self.log_scale, noise, self.concentration)
        return noise.div_(self.concentration).add_(self.log_scale)  # in place, as nothing needs the noise

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
    def log_expected_weight(self) -> Tensor:
        """Logarithm ``log E[S]``, per weight."""
        return self.log_scale + torch.lgamma(1 + self.concentration.reciprocal())

    @property
    def entropy_per_weight(self) -> Tensor:
        return 1 + EULER_GAMMA - self.concentration.log()

    def log_density(self, value: Tensor) -> Tensor:
        standard = self.concentration * (value - self.log_scale)
        return self.concentration.log() + standard - standard.exp()


@FAMILIES.register("weibull")
class Weibull(OneParameterFamily):
    r"""Weibull posterior: :math:`\lambda = \exp(\Phi) / \Gamma(1 + 1/k)`.

    Args:
        concentration: ``k > 0``; ``Std[log S]`` is 1.28 / k. A number, one per head, or a network
            (:class:`WidthNetwork`).
        learnable: Train the number (through its logarithm).

    Example:
        >>> Weibull(concentration=5.0)
        Weibull(concentration=5.0)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    def __init__(self, concentration: float | Tensor | nn.Module = 10.0, *, learnable: bool = False) -> None:
        super().__init__("concentration", concentration, of="weibull", learnable=learnable)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> WeibullWeights:
        k = self.value(call)
        return around_scores(WeibullWeights, call, prior, call.scores - torch.lgamma(1 + k.reciprocal()), k)
