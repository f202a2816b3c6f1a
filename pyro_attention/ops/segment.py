"""Softmax over the incoming edges of each node, and weighted sums along edges.

Edges stand at dimension -2 of the scores ``[..., edges, heads]``. Sums over segments are products with a sparse
incidence matrix: several times faster than scatter-adds on a CPU, and free of their races on a GPU. Backward passes
are written out: they save one tensor instead of five. Where they are to be differentiated themselves, and inside the
transforms of ``torch.func``, plain PyTorch takes their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_attention._checks import in_transform
from pyro_attention.ops.head_product import HeadPattern, head_product
from pyro_attention.ops.plain_segment import (
    plain_aggregate,
    plain_gradients,
    plain_log_softmax,
    plain_softmax,
    plain_spread,
    plain_sum,
)

__all__ = ["Segments", "segment_aggregate", "segment_log_softmax", "segment_softmax"]


@dataclass(frozen=True, eq=False)
class Segments:
    """Which segment (node) each edge belongs to, prepared once for many reductions.

    Args:
        index: Segment of each edge, int64 ``[E]`` in ``0 .. count - 1``.
        count: Number of segments.

    Attributes:
        order: Edges by segment.
        offsets: Where each segment starts in this order, and the number of edges.

    Example:
        >>> segments = Segments(torch.tensor([0, 0, 2]), 3)
        >>> segments.sum(torch.ones(3, 1)).flatten().tolist()
        [2.0, 0.0, 1.0]
    """

    index: Tensor
    count: int
    order: Tensor = field(init=False, repr=False)
    offsets: Tensor = field(init=False, repr=False)
    _incidence: dict[torch.dtype, Tensor] = field(init=False, repr=False, default_factory=dict)
    _patterns: dict[int, HeadPattern] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        offsets = torch.bincount(self.index, minlength=self.count).cumsum(0)
        object.__setattr__(self, "order", self.index.argsort(stable=True))
        object.__setattr__(self, "offsets", torch.nn.functional.pad(offsets, (1, 0)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Segments, (self.index, self.count)  # copies prepare anew: a sparse matrix cannot be copied

    def to(self, device: torch.device | str) -> Segments:
        """Copy on another device."""
        return Segments(self.index.to(device), self.count)

    def gather(self, values: Tensor, *, dim: int = -2) -> Tensor:
        """Values of the segments ``[..., count, H]`` at their edges, ``[..., E, H]``; without gradient."""
        return _take(values, self.index, dim)

    def spread(self, values: Tensor) -> Tensor:
        """Values of the segments ``[..., count, H]`` at their edges, ``[..., E, H]``; differentiable."""
        return plain_spread(values, self) if in_transform(values) else _spread(values, self)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of ``[..., E, H]`` over the edges of each segment: ``[..., count, H]``; zero for empty ones."""
        if in_transform(values):
            return plain_sum(values, self)
        if torch.is_autocast_enabled(values.device.type):  # there is no sparse product in half precision
            with torch.autocast(values.device.type, enabled=False):
                return self.sum(values)
        dtype = values.dtype if values.dtype == torch.float64 else torch.float32
        if values.dim() == 2 and values.dtype == dtype:
            return self._matrix(dtype) @ values
        columns = values.to(dtype).movedim(-2, 0)
        total: Tensor = self._matrix(dtype) @ columns.flatten(1)
        return torch.unflatten(total, -1, columns.shape[1:]).movedim(0, -2).to(values.dtype)

    def max(self, values: Tensor) -> Tensor:
        """Maximum of ``[..., E, H]`` over the edges of each segment: ``[..., count, H]``; -inf for empty ones."""
        columns = _take(values.movedim(-2, 0), self.order, 0)
        highest = torch.segment_reduce(columns, "max", offsets=self.offsets, axis=0, unsafe=True)
        return highest.movedim(0, -2)

    def pattern(self, columns: Segments, heads: int) -> HeadPattern:
        """Pattern of the matrix of edge weights from the columns to these rows."""
        pattern = self._patterns.get(heads)
        if pattern is None or pattern.index is not columns.index:
            pattern = self._patterns[heads] = HeadPattern.of(self, columns, heads)
        return pattern

    def _matrix(self, dtype: torch.dtype) -> Tensor:
        """Sparse ``[count, E]`` with a one where an edge belongs to a segment."""
        if dtype not in self._incidence:
            ones = torch.ones(self.index.numel(), dtype=dtype, device=self.index.device)
            shape = (self.count, self.index.numel())
            # the sparse product wants 32-bit indices and would convert them at every call
            pointers = self.offsets.int(), self.order.int()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
                matrix = torch.sparse_csr_tensor(*pointers, ones, shape, check_invariants=False)
            self._incidence[dtype] = matrix
        return self._incidence[dtype]


def _shifted(scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Scores minus a bound of their segment, so that exp neither overflows nor underflows where it counts."""
    if mask is None and scores.is_cpu and scores.numel():
        low, high = torch.aminmax(scores)
        if high - low < 40:  # one bound serves all segments: exp(-40) is far from underflow
            return scores - high
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    # in place, here and below: on a CPU a new tensor costs more than a pass over an old one
    return segments.gather(segments.max(scores)).neg_().add_(scores)


def _totals(exponentials: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Sum of each segment, ``[..., count, H]``; at least the smallest float, so that empty segments divide."""
    if mask is not None:
        exponentials.masked_fill_(~mask, 0)
    total = segments.sum(exponentials)
    return total.clamp_(min=torch.finfo(total.dtype).tiny)


def _take(values: Tensor, index: Tensor, dim: int) -> Tensor:
    """``values.index_select(dim, index)``, which on a CPU is many times slower on strided tensors."""
    return values.contiguous().index_select(dim, index)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        return segments.gather(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = plain_sum(grad, ctx.segments) if torch.is_grad_enabled() else ctx.segments.sum(grad)
        return total, None


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
        exponentials = _shifted(scores, segments, mask).exp_()
        weights = exponentials.div_(segments.gather(_totals(exponentials, segments, mask)))
        ctx.save_for_backward(weights)
        ctx.segments = segments
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        weighted = grad * weights
        if torch.is_grad_enabled():
            total = plain_spread(plain_sum(weighted, ctx.segments), ctx.segments)
            return weighted - weights * total, None, None
        total = ctx.segments.gather(ctx.segments.sum(weighted))
        return weighted.addcmul_(weights, total, value=-1), None, None


class _SegmentLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
        shifted = _shifted(scores, segments, mask)
        exponentials = shifted.exp()
        totals = _totals(exponentials, segments, mask)
        # the logarithm of each segment, not of each edge
        log_weights = shifted.sub_(segments.gather(totals.log()))
        if mask is not None:
            log_weights.masked_fill_(~mask, 0)
        ctx.save_for_backward(exponentials, totals, mask, log_weights)
        ctx.segments = segments
        return log_weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        exponentials, totals, mask, log_weights = ctx.saved_tensors
        if mask is not None:
            grad = grad.masked_fill(~mask, 0)
        if torch.is_grad_enabled():  # the result can be differentiated again, the exponentials cannot
            weights = log_weights.exp() if mask is None else log_weights.exp().masked_fill(~mask, 0)
            return grad - weights * plain_spread(plain_sum(grad, ctx.segments), ctx.segments), None, None
        share = ctx.segments.gather(ctx.segments.sum(grad).div_(totals))
        return torch.addcmul(grad, share, exponentials, value=-1), None, None


class _SegmentAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, sources: Segments, targets: Segments) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.segments = sources, targets
        messages, factors = sources.gather(values, dim=-3), weights.unsqueeze(-1)
        # in place where possible: the messages are the largest tensor of a layer
        fits = torch.broadcast_shapes(messages.shape, factors.shape) == messages.shape
        messages = messages.mul_(factors) if fits else messages * factors
        return torch.unflatten(targets.sum(messages.flatten(-2)), -1, messages.shape[-2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, values = ctx.saved_tensors
        sources, targets = ctx.segments
        if torch.is_grad_enabled():
            return *plain_gradients(grad, weights, values, sources, targets), None, None
        messages, grad_weights, grad_values = targets.gather(grad, dim=-3), None, None
        if ctx.needs_input_grad[0]:
            gathered = sources.gather(values, dim=-3)
            products = gathered.mul_(messages) if gathered.shape == messages.shape else gathered * messages
            grad_weights = products.sum(-1).sum_to_size(weights.shape)
        if ctx.needs_input_grad[1]:
            total = sources.sum(messages.mul_(weights.unsqueeze(-1)).flatten(-2))
            grad_values = total.unflatten(-1, messages.shape[-2:]).sum_to_size(values.shape)
        return grad_weights, grad_values, None, None


# torch leaves `apply` untyped in some releases
_spread: Callable[..., Tensor] = _Spread.apply
_segment_softmax: Callable[..., Tensor] = _SegmentSoftmax.apply
_segment_log_softmax: Callable[..., Tensor] = _SegmentLogSoftmax.apply
_segment_aggregate: Callable[..., Tensor] = _SegmentAggregate.apply


def segment_softmax(scores: Tensor, segments: Segments, *, mask: Tensor | None = None) -> Tensor:
    """Softmax over the edges of each segment; masked edges and empty segments get exactly zero.

    Args:
        scores: ``[..., E, H]``, finite.
        segments: Segment of each edge.
        mask: True where an edge counts; boolean, broadcastable to the scores.

    Returns:
        Weights ``[..., E, H]``, summing to one over each segment with an unmasked edge.

    Example:
        >>> segment_softmax(torch.zeros(3, 1), Segments(torch.tensor([0, 0, 1]), 2)).flatten().tolist()
        [0.5, 0.5, 1.0]
    """
    if in_transform(scores):
        return plain_softmax(scores, segments, mask)
    return _segment_softmax(scores, segments, mask)


def segment_log_softmax(scores: Tensor, segments: Segments, *, mask: Tensor | None = None) -> Tensor:
    """Logarithm of :func:`segment_softmax`; masked entries are 0 (finite), to be excluded by the same mask.

    Example:
        >>> segment_log_softmax(torch.zeros(1, 1), Segments(torch.tensor([0]), 1)).item()
        0.0
    """
    if in_transform(scores):
        return plain_log_softmax(scores, segments, mask)
    return _segment_log_softmax(scores, segments, mask)


def segment_aggregate(weights: Tensor, values: Tensor, *, sources: Segments, targets: Segments) -> Tensor:
    """Sum the values of the source nodes, weighted per edge, into the target nodes.

    Args:
        weights: ``[..., E, H]``.
        values: ``[..., N, H, D]``, or one head ``[..., N, 1, D]`` that all share.
        sources: Source node of each edge.
        targets: Target node of each edge.

    Returns:
        ``[..., targets, H, D]``.

    Example:
        >>> node = Segments(torch.tensor([0]), 1)
        >>> segment_aggregate(torch.full((1, 1), 2.0), torch.ones(1, 1, 3), sources=node, targets=node).tolist()
        [[[2.0, 2.0, 2.0]]]
    """
    if in_transform(weights, values):
        return plain_aggregate(weights, values, sources, targets)
    if weights.is_cpu and values.dim() == 3 and weights.shape[1:] == values.shape[1:2] and _same_float(weights, values):
        return head_product(weights, values, sources=sources, targets=targets)
    return _segment_aggregate(weights, values, sources, targets)


def _same_float(*tensors: Tensor) -> bool:
    """Whether all are float32 or all float64, and stay so: there is no sparse product in half precision."""
    cast = torch.is_autocast_enabled(tensors[0].device.type)
    return not cast and {x.dtype for x in tensors} in ({torch.float32}, {torch.float64})
