"""The LogNormal family: its distribution over ``log S``, its priors and its posterior."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor, nn

from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, PRIORS, OneParameterFamily
from pyro_attention.families.distribution import (
    AttentionDistribution,
    ContinuousWeights,
    LogWeights,
    WeightsOptions,
    around_scores,
)
from pyro_attention.families.key_network import ConstantPrior, KeyNetwork

__all__ = ["ContextualLogNormalPrior", "FixedLogNormalPrior", "LogNormal", "LogNormalWeights", "NormalValue"]


class NormalValue(ContinuousWeights):
    r"""Distribution of independent entries :math:`\mathrm{Normal}(m, s)`, the base of LogNormal and Gaussian weights.

    Arguments and errors are those of :class:`ContinuousWeights`: ``loc`` and a positive ``scale``.
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor, **options: Unpack[WeightsOptions]) -> None:
        super().__init__(loc=loc, scale=scale, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        return torch.addcmul(self.loc, torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device), self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    @property
    def entropy_per_weight(self) -> Tensor:
        return 0.5 * math.log(2 * math.pi * math.e) + self.scale.log()

    def log_density(self, value: Tensor) -> Tensor:
        standard = (value - self.loc) / self.scale
        return -0.5 * standard.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)

    def cross_entropy(self, q: LogWeights | NormalValue) -> Tensor:
        r"""Sum :math:`\log s + \tfrac12\log 2\pi + (\mathrm{Var}_q[v] + (\mathrm{E}_q[v]-m)^2)/2s^2` of values v."""
        precision = self.scale.square().reciprocal() / 2
        constant = self.sum_event(self.scale.log() + 0.5 * math.log(2 * math.pi))
        return (
            constant + self.sum_event(q.variance * precision) + self.sum_event((q.mean - self.loc).square() * precision)
        )


class LogNormalWeights(NormalValue, LogWeights):
    r"""Log of LogNormal weights: :math:`\log S \sim \mathrm{Normal}(m, s)`; posterior or prior.

    .. math:: \log \mathrm{E}[S] = m + s^2/2, \quad \mathrm{H}[\log S] = \tfrac12 \log(2\pi e) + \log s

    Example:
        >>> p = LogNormalWeights(torch.zeros(1, 1, 4), torch.tensor(1.0))
        >>> p.log_expected_weight.tolist()
        [[[0.5, 0.5, 0.5, 0.5]]]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    @property
    def mean_gap(self) -> Tensor:
        return self.scale.square() / 2

    @cached_property
    def log_expected_weight(self) -> Tensor:
        """Logarithm ``log E[S]``, per weight."""
        return self.loc + self.scale.square() / 2


@PRIORS.register("lognormal_fixed")
class FixedLogNormalPrior(ConstantPrior):
    """One LogNormal(loc, scale) for all weights: mean and standard deviation of ``log S``.

    Example:
        >>> FixedLogNormalPrior(loc=-1.0, scale=2.0)
        FixedLogNormalPrior(loc=-1.0, scale=2.0)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    loc: Tensor
    log_scale: Tensor

    def __init__(self, loc: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.add_constant("loc", loc)
        self.add_positive("scale", scale)

    def forward(self, call: AttentionCall) -> LogNormalWeights:
        return LogNormalWeights(self.loc, self.log_scale.exp(), layout=call.layout, shape=call.scores.shape)


@PRIORS.register("lognormal_contextual")
class ContextualLogNormalPrior(ConstantPrior):
    r"""LogNormal prior whose location is read off the keys: :math:`m_j = \log\Psi_j`, fixed scale.

    Args:
        key_dim: Width of a key.
        heads: One network a head, or 1 for a network shared by all heads.
        scale: Standard deviation of ``log S``, positive; the smaller, the stronger the prior.
        hidden_dim: Width of the hidden layer.
        all_nodes: See :class:`KeyNetwork`.
        as_printed: Take :math:`m_j = \Psi_j`, as the paper prints it; its released code has :math:`\log\Psi_j`.

    Example:
        >>> from pyro_attention import Dense
        >>> call = AttentionCall(scores=torch.zeros(2, 3, 5), keys=torch.randn(2, 5, 8), layout=Dense())
        >>> ContextualLogNormalPrior(8)(call).loc.shape
        torch.Size([2, 1, 5])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3 (contextual prior).
    """

    log_scale: Tensor

    def __init__(
        self,
        key_dim: int,
        heads: int = 1,
        *,
        scale: float = 1.0,
        hidden_dim: int = 10,
        all_nodes: bool = False,
        as_printed: bool = False,
    ) -> None:
        super().__init__()
        self.network = KeyNetwork(key_dim, heads, hidden_dim=hidden_dim, all_nodes=all_nodes)
        self.as_printed = as_printed
        self.add_positive("scale", scale)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', as_printed=True' if self.as_printed else ''}"

    def forward(self, call: AttentionCall) -> LogNormalWeights:
        log_psi: Tensor = self.network(call.keys, call.layout)
        loc = log_psi.exp() if self.as_printed else log_psi
        return LogNormalWeights(loc, self.log_scale.exp(), layout=call.layout, shape=call.scores.shape)


@FAMILIES.register("lognormal")
class LogNormal(OneParameterFamily):
    r"""LogNormal posterior: location :math:`\Phi - \sigma^2/2`.

    Args:
        scale: ``sigma > 0``, the standard deviation of ``log S``: a number, one per head, or a network
            (:class:`WidthNetwork`).
        learnable: Train the number (through its logarithm).

    Example:
        >>> LogNormal(scale=0.5, learnable=True)
        LogNormal(scale=0.5, learnable=True)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    def __init__(self, scale: float | Tensor | nn.Module = 0.5, *, learnable: bool = False) -> None:
        super().__init__("scale", scale, of="lognormal", learnable=learnable)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> LogNormalWeights:
        scale = self.value(call)
        return around_scores(LogNormalWeights, call, prior, call.scores - scale.square() / 2, scale)
