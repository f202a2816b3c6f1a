"""A new posterior family, complete in one file, as a user writes it: the example of docs/how_to/own_family.md."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_attention import AttentionCall
from pyro_attention.families.base import FAMILIES, OneParameterFamily
from pyro_attention.families.distribution import AttentionDistribution, LogWeights, around_scores
from pyro_attention.ops.special import log_standard_gamma


class InverseGammaWeights(LogWeights):
    r"""Log of inverse Gamma weights, :math:`\log S = \log b - \log G`, G a standard Gamma variable of shape a > 1."""

    def __init__(self, shape_a: Tensor, log_scale: Tensor, **options: Any) -> None:
        super().__init__(shape_a=shape_a, log_scale=log_scale, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        a = self.shape_a.expand(shape)
        return self.log_scale - log_standard_gamma(a, a.log())

    @cached_property
    def log_expected_weight(self) -> Tensor:  # log E[S]
        return self.log_scale - (self.shape_a - 1).log()

    @property
    def mean(self) -> Tensor:  # E[log S]
        return self.log_scale - torch.digamma(self.shape_a)

    @property
    def variance(self) -> Tensor:  # Var[log S]
        return torch.polygamma(1, self.shape_a)

    @property
    def entropy_per_weight(self) -> Tensor:  # of log S
        return self.shape_a - self.shape_a * torch.digamma(self.shape_a) + torch.lgamma(self.shape_a)

    def log_density(self, value: Tensor) -> Tensor:  # of log S
        log_g = self.log_scale - value
        return self.shape_a * log_g - log_g.exp() - torch.lgamma(self.shape_a)


@FAMILIES.register("inverse_gamma")
class InverseGamma(OneParameterFamily):
    """Inverse Gamma posterior with E[S] = exp(scores); a large concentration is nearly ordinary attention."""

    def __init__(self, concentration: float | Tensor = 10.0, *, learnable: bool = False) -> None:
        super().__init__("concentration", concentration, of="inverse_gamma", learnable=learnable)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> InverseGammaWeights:
        k = self.value(call)
        return around_scores(InverseGammaWeights, call, prior, 1 + k, k.log() + call.scores)
