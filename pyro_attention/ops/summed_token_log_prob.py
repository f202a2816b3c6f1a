"""Log probabilities of tokens that an alignment is summed out of, whose gradient comes with their value.

:mod:`pyro_attention.ops.token_log_prob` computes all logits again in the backward pass, because it cannot know what the
gradient of its result will be. Below an alignment it is known: each alignment's posterior probability, times one factor
for all. So the logits of a word are still at hand when its gradient is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_attention.ops._output_layer import OutputLayer, add_product, once_differentiable, product_dtype
from pyro_attention.ops.token_log_prob import default_chunk_rows, token_log_prob

__all__ = ["summed_token_log_prob"]

MOST_WORTH_LEAVING_OUT = 0.75  # to leave rows out of a product, the others are copied


class _Groups:
    """Rows that are summed over together, of groups in their order, and chunks of whole groups."""

    def __init__(self, slots: Tensor, log_weight: Tensor, *, evidence: bool, roulette: float, chunk_rows: int) -> None:
        self._slots, self._log_weight, self._evidence, self._roulette = slots, log_weight, evidence, roulette
        groups, self._size = log_weight.shape
        counts = torch.bincount(slots // self._size, minlength=groups)
        chunk = (counts.cumsum(0) - counts) // chunk_rows
        self._groups: list[int] = chunk.unique_consecutive(return_counts=True)[1].tolist()
        self._rows: list[int] = [int(part.sum()) for part in counts.split(self._groups)]
        self.most_rows = max(self._rows, default=0)

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Groups of each chunk, and their rows."""
        group = row = 0
        for groups, rows in zip(self._groups, self._rows, strict=True):
            yield slice(group, group + groups), slice(row, row + rows)
            group, row = group + groups, row + rows

    def shares(self, groups: slice, rows: slice, log_prob: Tensor) -> Tensor:
        """Gradient of the sums with respect to the log probabilities of a chunk's rows, ``[rows]``."""
        log_weight, slots = self._log_weight[groups], self._slots[rows] - groups.start * self._size
        if not self._evidence:
            return log_weight.flatten()[slots].exp()
        joint = torch.full_like(log_weight, -torch.inf).flatten()
        joint[slots] = log_prob + log_weight.flatten()[slots]
        return joint.view_as(log_weight).softmax(-1).flatten()[slots].nan_to_num(0.0)

    def rounded(self, shares: Tensor) -> Tensor:
        """Shares whose small ones are zero or ``roulette``, at random, with the same expectation."""
        if not self._roulette:
            return shares
        stays = torch.rand_like(shares) * self._roulette < shares
        return shares.where(shares >= self._roulette, stays.to(shares.dtype) * self._roulette)


class _SummedTokenLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token: Tensor,
        groups: _Groups,
        dtype: torch.dtype,
    ) -> Tensor:
        layer, needed = OutputLayer(features, weight, bias, dtype), ctx.needs_input_grad
        log_probs, all_shares = layer.new(layer.count), layer.new(layer.count)
        for_features = layer.new(*features.shape).zero_() if needed[0] else None
        for_weight = layer.new(*weight.shape).zero_() if needed[1] else None
        for_bias = layer.new(len(weight), 1).zero_() if needed[2] else None
        buffer = torch.empty(groups.most_rows, len(weight), dtype=dtype, device=features.device)
        for chunk_groups, chunk in groups.chunks():
            x = layer.x[chunk]
            logits = torch.mm(x, layer.weight.t(), out=buffer[: len(x)])
            log_probs[chunk] = _to_residuals(logits, layer, token[chunk].unsqueeze(1))
            shares = all_shares[chunk] = groups.shares(chunk_groups, chunk, log_probs[chunk]).to(layer.exact)
            shares = groups.rounded(shares)
            rows: slice | Tensor = chunk
            kept = (shares > torch.finfo(shares.dtype).eps).nonzero().squeeze(1)  # less is lost in a sum
            if len(kept) < MOST_WORTH_LEAVING_OUT * len(x):
                logits, x, shares, rows = logits[kept], x[kept], shares[kept], kept + chunk.start
            factors = shares.unsqueeze(1)
            if for_features is not None:
                for_features[rows] = (logits @ layer.weight).to(layer.exact).mul_(factors)
            if for_weight is not None:
                add_product(for_weight, logits.t(), (x * factors).to(dtype))
            if for_bias is not None:
                add_product(for_bias, logits.t(), factors.to(dtype))
        for_bias = None if for_bias is None else for_bias.squeeze(1)
        ctx.save_for_backward(features, weight, bias, token, all_shares, for_features, for_weight, for_bias)
        return log_probs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        once_differentiable()
        features, weight, bias, token, shares, *found = ctx.saved_tensors
        factor = (grad * shares).sum() / shares.square().sum().clamp(min=torch.finfo(shares.dtype).tiny)
        tolerance = max(100 * torch.finfo(shares.dtype).eps, 1e-10) * factor.abs()
        # not so where sentences have weights, or something else is observed below the alignment
        if not bool(((grad - factor * shares).abs() <= tolerance).all()):
            return (*_gradients(features, weight, bias, token, grad, ctx.needs_input_grad[:3]), None, None, None)
        gradients = (
            None if gradient is None else (factor * gradient).to(tensor.dtype)
            for gradient, tensor in zip(found, (features, weight, bias), strict=True)
        )
        return (*gradients, None, None, None)


def _to_residuals(logits: Tensor, layer: OutputLayer, token: Tensor) -> Tensor:
    """Log probability of each row's token; its logits become the observed minus the expected number of each token.

    The numbers of a few rows stay in the cache of a CPU from the first of these passes to the last.
    """
    log_prob = layer.new(len(logits))
    few = default_chunk_rows(logits.size(1), device=logits.device) // (8 if logits.device.type == "cpu" else 1)
    for part, chosen, found in zip(*(x.split(max(1, few)) for x in (logits, token, log_prob)), strict=True):
        exact = part.to(layer.exact)
        if layer.bias is not None:
            exact.add_(layer.bias)
        observed, highest = exact.gather(1, chosen), exact.amax(1, keepdim=True)
        total = exact.sub_(highest).exp_().sum(1, keepdim=True)
        found.copy_((observed - highest - total.log()).squeeze(1))
        exact.div_(-total).scatter_add_(1, chosen, torch.ones_like(total))
        if exact is not part:
            part.copy_(exact)
    return log_prob


def _gradients(
    features: Tensor, weight: Tensor, bias: Tensor | None, token: Tensor, grad: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the inputs that need one, whatever that of the result is."""
    with torch.enable_grad():
        x, w = features.detach().requires_grad_(needed[0]), weight.detach().requires_grad_(needed[1])
        b = None if bias is None else bias.detach().requires_grad_(needed[2])
        log_prob = token_log_prob(x, w, token, b)
    leaves = [leaf for leaf in (x, w, b) if leaf is not None and leaf.requires_grad]
    gradients = iter(torch.autograd.grad(log_prob, leaves, grad))
    return [next(gradients) if wanted else None for wanted in needed]


# torch leaves `apply` untyped in some releases
_summed_token_log_prob: Callable[..., Tensor] = _SummedTokenLogProb.apply


def summed_token_log_prob(
    features: Tensor,
    weight: Tensor,
    token: Tensor,
    bias: Tensor | None = None,
    *,
    slots: Tensor,
    log_weight: Tensor,
    evidence: bool,
    roulette: float = 0.0,
    chunk_rows: int | None = None,
) -> Tensor:
    r"""As :func:`token_log_prob`, computed faster with its gradient if a sum over alignments is what it is for.

    .. math:: c \sum_g \log \sum_{n} w_{gn}\, p_{gn}(t_g) \quad\text{or}\quad c \sum_g \sum_n w_{gn} \log p_{gn}(t_g)

    is the quantity whose gradient is computed, with a factor c that the backward pass finds. It then checks that the
    gradient of the result is that one, and computes another with logits of its own if it is not.

    Args:
        features: ``[R, D]``.
        weight: ``[V, D]``.
        token: Ids ``[R]``.
        bias: ``[V]``.
        slots: Where each row stands in ``log_weight``, flattened; increasing, ``[R]``.
        log_weight: log w, prior or posterior of each alignment of each group: ``[G, N]``, without gradient.
        evidence: The first of the sums, else the second.
        roulette: Rows whose share of a group's gradient is below this have a gradient with the probability share /
            roulette alone, and then that of so large a share: unbiased, and less work. The value is exact.
        chunk_rows: As for :func:`token_log_prob`; a chunk has whole groups.

    Returns:
        Natural logarithms ``[R]``, of the rows' own tokens.

    Example:
        >>> x, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> weights = {"slots": torch.tensor([0, 1]), "log_weight": torch.zeros(1, 2)}
        >>> summed_token_log_prob(x, w, torch.tensor([1, 1]), **weights, evidence=True).exp().tolist()
        [0.25, 0.25]
    """
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in (features, weight, bias)):
        return token_log_prob(features, weight, token, bias, chunk_rows=chunk_rows)
    dtype = product_dtype(features, weight)
    if chunk_rows is None:  # 16 MB on a CPU: the gradient of the weights, as large, is added to once a chunk
        chunk_rows = default_chunk_rows(len(weight), dtype, device=features.device) * 2
    with torch.autocast(features.device.type, enabled=False):
        groups = _Groups(slots, log_weight.detach(), evidence=evidence, roulette=roulette, chunk_rows=chunk_rows)
        return _summed_token_log_prob(features, weight, bias, token, groups, dtype)
