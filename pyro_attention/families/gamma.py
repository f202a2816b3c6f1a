"""The Gamma family: its distribution over ``log S``, its priors and its posterior."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Unpack

import torch
from torch import Tensor, nn

from pyro_attention._checks import in_transform
from pyro_attention._typing import Context
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, PRIORS, OneParameterFamily
from pyro_attention.families.distribution import AttentionDistribution, LogWeights, WeightsOptions, around_scores
from pyro_attention.families.key_network import ConstantPrior, KeyNetwork
from pyro_attention.ops.special import digamma1p, digamma_exp, lgamma1p, lgamma_exp, log_standard_gamma, trigamma_exp

__all__ = ["ContextualGammaPrior", "FixedGammaPrior", "Gamma", "GammaWeights"]

_LOG2_E = math.log2(math.e)


class GammaWeights(LogWeights):
    r"""Log of Gamma weights, S ~ Gamma(a, rate b); posterior or prior, exact down to vanishing shapes.

    .. math:: \log p(\log S) = a \log S - b S + a \log b - \log\Gamma(a), \quad
              \mathrm{E}[\log S] = \psi(a) - \log b, \quad \mathrm{Var}[\log S] = \psi'(a)

    The parameters are logarithms because a contextual shape, a softmax over many keys, may underflow.

    Args:
        log_concentration: ``log a``, broadcastable to batch + event.
        log_rate: ``log b``, broadcastable to batch + event.
        options: Options of :class:`LogWeights`.

    Example:
        >>> GammaWeights(torch.zeros(1, 1, 2), torch.tensor(4.0).log()).log_expected_weight.exp().flatten().tolist()
        [0.25, 0.25]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    log_concentration: Tensor
    log_rate: Tensor

    def __init__(self, log_concentration: Tensor, log_rate: Tensor, **options: Unpack[WeightsOptions]) -> None:
        super().__init__(log_concentration=log_concentration, log_rate=log_rate, **options)

    @property
    def concentration(self) -> Tensor:
        """Shape ``a``."""
        return self.log_concentration.exp()

    def draw(self, shape: torch.Size) -> Tensor:
        log_concentration = self.log_concentration.expand(shape)
        return log_standard_gamma(log_concentration.exp(), log_concentration) - self.log_rate

    @property
    def mean(self) -> Tensor:
        return digamma_exp(self.log_concentration) - self.log_rate

    @property
    def variance(self) -> Tensor:
        return trigamma_exp(self.log_concentration)

    @property
    def mean_gap(self) -> Tensor:
        return self.log_concentration + (-self.log_concentration).exp() - torch.digamma(1 + self.concentration)

    @cached_property
    def log_expected_weight(self) -> Tensor:
        """Logarithm ``log E[S]``, per weight."""
        return self.log_concentration - self.log_rate

    @property
    def entropy_per_weight(self) -> Tensor:
        x = self.log_concentration.double()  # as large terms cancel
        a = x.exp()
        return (a + 1 - a * torch.digamma(1 + a) + lgamma_exp(x)).to(self.log_concentration)

    def log_density(self, value: Tensor) -> Tensor:
        scaled = value + self.log_rate
        return self.concentration * scaled - scaled.exp() - lgamma_exp(self.log_concentration)

    def cross_entropy(self, q: LogWeights) -> Tensor:
        r"""Sum :math:`\log\Gamma(a) - a\,(\mathrm{E}_q[\log S] + \log b) + b\,\mathrm{E}_q[S]`."""
        log_mean, x = q.log_expected_weight.expand(q.full_shape), self.log_concentration
        total = _plain_cross_entropy if in_transform(log_mean, x) else _cross_entropy
        return total(
            log_mean, x, self.log_rate, self.log_rate - q.mean_gap, self.layout.counted_entries, len(self.event_shape)
        )


def _plain_cross_entropy(
    log_mean: Tensor, x: Tensor, log_rate: Tensor, offset: Tensor, counted: Tensor | None, event_dim: int
) -> Tensor:
    r"""Sum :math:`\log\Gamma(a) - a (\log\mathrm{E}[S] + c) + b\,\mathrm{E}[S]` over what counts, a = exp(x)."""
    terms = torch.lgamma(1 + x.exp()) - x - x.exp() * (log_mean + offset) + (log_mean + log_rate).exp()
    return (terms if counted is None else terms.where(counted, 0)).flatten(-event_dim).sum(-1)


class _CrossEntropy(torch.autograd.Function):
    """Cross entropy of :func:`_plain_cross_entropy` in few passes.

    Scores meet the parameters of a key, and a rate, once, as sums over the entries that share them.
    """

    @staticmethod
    def forward(
        ctx: Context,
        log_mean: Tensor,
        x: Tensor,
        log_rate: Tensor,
        offset: Tensor,
        counted: Tensor | None,
        event_dim: int,
    ) -> Tensor:
        dims = tuple(range(-event_dim, 0))
        shared_dims = [dim for dim in dims if _is_one(x, dim)]  # along which entries share a shape parameter
        times = _times(log_mean, counted, shared_dims)
        scores = log_mean if counted is None else log_mean * counted  # finite, and so its exponential shall be
        # sum of log E[S] + c over the entries that share a parameter
        if all(_is_one(offset, dim) for dim in shared_dims):
            total = _sum(scores, shared_dims) + offset * times
        else:
            total = _sum(scores + (offset if counted is None else offset * counted), shared_dims)
        a = x.exp()
        # a rate for each weight may be infinite, and its product with E[S] not: their logarithms are added then
        is_one_rate = all(_is_one(log_rate, dim) for dim in dims)
        rate = log_rate.exp() if is_one_rate else x.new_ones(())
        # E[S], or b E[S]; the exponential by a power of two, which takes a third of the time on many CPUs
        expected = ((scores if is_one_rate else scores + log_rate) * _LOG2_E).exp2_()
        if counted is not None:
            expected.mul_(counted)
        # b E[S], summed where there is one rate; and the slope by the scores, divided by that rate
        scaled = expected.sum(dims, keepdim=True) * rate if is_one_rate else expected
        slope = expected.sub_(a / rate) if is_one_rate else expected - a
        if counted is not None:
            slope.mul_(counted)
        ctx.save_for_backward(log_mean, x, log_rate, offset, counted, slope, scaled, total, a, rate)
        ctx.times, ctx.event_dim = times, event_dim
        log_gamma = lgamma1p(a).sub_(x)
        loss: Tensor = scaled.sum(dims) + torch.addcmul(log_gamma * times, total, a, value=-1).sum(dims)
        return loss

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        log_mean, x, log_rate, offset, counted, slope, scaled, total, a, rate = ctx.saved_tensors
        needed, times = ctx.needs_input_grad, ctx.times
        if torch.is_grad_enabled():  # for a second derivative
            inputs = [tensor for tensor, need in zip((log_mean, x, log_rate, offset), needed, strict=False) if need]
            value = _plain_cross_entropy(log_mean, x, log_rate, offset, counted, ctx.event_dim)
            gradients = iter(torch.autograd.grad(value, inputs, grad, create_graph=True))
            return *(next(gradients) if need else None for need in needed[:4]), None, None
        grad = grad[(..., *[None] * ctx.event_dim)]
        by_x = (digamma1p(a) * times - total).mul_(a).sub_(times).mul_(grad).sum_to_size(x.shape)
        by_rate = (scaled * grad).sum_to_size(log_rate.shape) if needed[2] else None
        counts = a.new_ones(()) if counted is None else counted
        by_offset = -(a * grad * counts).expand(slope.shape).sum_to_size(offset.shape) if needed[3] else None
        return slope * (rate * grad), by_x, by_rate, by_offset, None, None


def _times(log_mean: Tensor, counted: Tensor | None, shared_dims: list[int]) -> Tensor:
    """Return for each shape parameter the number of entries that share it and count, with the shared dimensions."""
    broadcast_dims = [dim for dim in shared_dims if counted is None or _is_one(counted, dim)]
    along_broadcast = math.prod(log_mean.size(dim) for dim in broadcast_dims)
    if counted is None:
        return torch.ones((), dtype=torch.int64) * along_broadcast
    summed_dims = [dim for dim in shared_dims if dim not in broadcast_dims]
    return _sum(counted, summed_dims).to(log_mean) * along_broadcast


def _sum(x: Tensor, dims: list[int]) -> Tensor:
    """Sum over dimensions, which stay with size one; over none where the list is empty."""
    return x.sum(dims, keepdim=True) if dims else x


def _is_one(x: Tensor, dim: int) -> bool:
    """Return whether a tensor that is broadcast has one entry along a dimension, counted from the right."""
    return x.dim() < -dim or x.size(dim) == 1


_cross_entropy: Callable[..., Tensor] = _CrossEntropy.apply


@PRIORS.register("gamma_fixed")
class FixedGammaPrior(ConstantPrior):
    """One Gamma(concentration, rate) for all weights, both positive; its mean is concentration / rate.

    Example:
        >>> FixedGammaPrior(concentration=2.0, rate=1.0)
        FixedGammaPrior(concentration=2.0, rate=1.0)

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """

    log_concentration: Tensor
    log_rate: Tensor

    def __init__(self, concentration: float = 1.0, rate: float = 1.0) -> None:
        super().__init__()
        self.add_positive("concentration", concentration)
        self.add_positive("rate", rate)

    def forward(self, call: AttentionCall) -> GammaWeights:
        return GammaWeights(self.log_concentration, self.log_rate, layout=call.layout, shape=call.scores.shape)


@PRIORS.register("gamma_contextual")
class ContextualGammaPrior(ConstantPrior):
    r"""Gamma prior whose shape is read off the keys: :math:`a_j = b\,\Psi_j`, rate b, so the prior mean is Psi.

    Args:
        key_dim: Width of a key.
        heads: One network a head (as in the graph code), or 1 for a network shared by all heads.
        rate: Rate ``b > 0``; the larger, the stronger the prior.
        hidden_dim: Width of the hidden layer.
        all_nodes: See :class:`KeyNetwork`.
        as_printed: Take :math:`a_j = \Psi_j` and rate b, as the paper prints it: then the prior mean is Psi / b. Its
            released code has :math:`b\,\Psi_j`.

    Example:
        >>> ContextualGammaPrior(8, heads=2)
        ContextualGammaPrior(
          rate=1.0
          (network): KeyNetwork(8, heads=2, hidden_dim=10)
        )

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3 (contextual prior).
    """

    log_rate: Tensor

    def __init__(
        self,
        key_dim: int,
        heads: int = 1,
        *,
        rate: float = 1.0,
        hidden_dim: int = 10,
        all_nodes: bool = False,
        as_printed: bool = False,
    ) -> None:
        super().__init__()
        self.network = KeyNetwork(key_dim, heads, hidden_dim=hidden_dim, all_nodes=all_nodes)
        self.as_printed = as_printed
        self.add_positive("rate", rate)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}{', as_printed=True' if self.as_printed else ''}"

    def forward(self, call: AttentionCall) -> GammaWeights:
        log_psi: Tensor = self.network(call.keys, call.layout)
        log_concentration = log_psi if self.as_printed else log_psi + self.log_rate
        return GammaWeights(log_concentration, self.log_rate, layout=call.layout, shape=call.scores.shape)


@FAMILIES.register("gamma")
class Gamma(OneParameterFamily):
    r"""Gamma posterior: rate :math:`a \exp(-\Phi)`.

    Args:
        concentration: ``a > 0``; ``Var[S] / E[S]^2`` is 1 / a. A number, one per head, or a network
            (:class:`WidthNetwork`).
        learnable: Train the number (through its logarithm).

    Example:
        >>> Gamma(concentration=torch.tensor([2.0, 4.0]))
        Gamma(concentration=[2.0, 4.0])
    """

    def __init__(self, concentration: float | Tensor | nn.Module = 10.0, *, learnable: bool = False) -> None:
        super().__init__("concentration", concentration, of="gamma", learnable=learnable)

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> GammaWeights:
        log_concentration = self.value(call).log()
        return around_scores(GammaWeights, call, prior, log_concentration, log_concentration - call.scores)
