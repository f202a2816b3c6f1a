"""Softmax over the incoming edges of each node, and weighted sums along edges.

Edges stand at dimension -2 of the scores ``[..., edges, heads]``. Sums over segments are torch's embedding bags:
several times faster than scatter-adds on a CPU, and free of their races on a GPU. Backward passes are written out: they
save one tensor instead of five. Where they are to be differentiated themselves, and inside the transforms of
``torch.func``, plain PyTorch takes their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from pyro_attention._checks import as_float, in_transform
from pyro_attention._typing import Context

__all__ = ["Segments", "segment_aggregate", "segment_log_softmax", "segment_softmax"]


@dataclass(frozen=True, eq=False)
class Segments:
    """Membership of edges in segments (nodes), prepared once for many reductions.

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
    _patterns: dict[int, _HeadPattern] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        # torch.bincount would have to wait for the device
        offsets = self.index.new_zeros(self.count).scatter_add_(0, self.index, torch.ones_like(self.index)).cumsum(0)
        object.__setattr__(self, "order", self.index.argsort(stable=True))
        object.__setattr__(self, "offsets", pad(offsets, (1, 0)))

    def to(self, device: torch.device | str) -> Segments:
        """Return a copy on another device."""
        return Segments(self.index.to(device), self.count)

    def gather(self, values: Tensor, *, dim: int = -2) -> Tensor:
        """Return values of the segments ``[..., count, H]`` at their edges, ``[..., E, H]``; without gradient."""
        return _take(values, self.index, dim)

    def spread(self, values: Tensor) -> Tensor:
        """Return values of the segments ``[..., count, H]`` at their edges, ``[..., E, H]``; differentiable."""
        return _plain_spread(values, self) if in_transform(values) else _spread(values, self)

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``[..., E, H]`` over the edges of each segment, ``[..., count, H]``; differentiable."""
        return _plain_sum(values, self) if in_transform(values) else _sum(values, self)

    def total(self, values: Tensor) -> Tensor:
        """Sum ``[..., E, H]`` over the edges of each segment, ``[..., count, H]``; without gradient."""
        if values.dim() > 2 or values.dtype not in (torch.float32, torch.float64):  # sums are never in half precision
            columns = as_float(values).movedim(-2, 0)
            total: Tensor = torch.unflatten(self.total(columns.flatten(1)), -1, columns.shape[1:])
            return total.movedim(0, -2).to(values.dtype)
        return embedding_bag(self.order, values, self.offsets, mode="sum", include_last_offset=True)

    def max(self, values: Tensor) -> Tensor:
        """Return the maximum of ``[..., E, H]`` over each segment, ``[..., count, H]``; -inf for empty ones."""
        columns = _take(values.movedim(-2, 0), self.order, 0)
        highest = torch.segment_reduce(columns, "max", offsets=self.offsets, axis=0, unsafe=True)
        return highest.movedim(0, -2)

    def pattern(self, columns: Segments, heads: int) -> _HeadPattern:
        """Return the pattern of the matrix of edge weights from the columns to these rows."""
        pattern = self._patterns.get(heads)
        if pattern is None or pattern.index is not columns.index:
            pattern = self._patterns[heads] = _HeadPattern.of(self, columns, heads)
        return pattern


@dataclass(frozen=True, eq=False)
class _HeadPattern:
    """Edge weights ``[E, H]`` as entries of a matrix with a row per target and head, a column per source and head.

    Its product with the values never holds what an edge carries, ``[E, H, D]``: less than half of the time of a sum
    over segments, and a fraction of the memory. Prepared once for many products.
    """

    index: Tensor  # column segment of each edge
    shape: tuple[int, int]  # rows times heads, columns times heads
    pointers: Tensor  # start of each row's entries, int32
    columns: Tensor  # column of each entry, int32
    order: Tensor  # position of each entry in the flattened weights, int32
    positions: Tensor  # entry of each weight, [E * H], int32

    @classmethod
    def of(cls, rows: Segments, columns: Segments, heads: int) -> _HeadPattern:
        """Make the pattern with the edges of each row and head side by side."""
        start, degree = rows.offsets[rows.index], rows.offsets.diff()
        rank = torch.empty_like(rows.order).scatter_(0, rows.order, torch.arange(len(rows.order)))
        head = torch.arange(heads)
        positions = ((rank + start * (heads - 1)).unsqueeze(-1) + degree[rows.index].unsqueeze(-1) * head).flatten()

        def place(of_weights: Tensor) -> Tensor:
            return torch.empty_like(of_weights).scatter_(0, positions, of_weights).int()

        pattern = cls(
            index=columns.index,
            shape=(rows.count * heads, columns.count * heads),
            pointers=pad(degree.repeat_interleave(heads).cumsum(0), (1, 0)).int(),
            columns=place((columns.index.unsqueeze(-1) * heads + head).flatten()),
            order=place(torch.arange(positions.numel())),
            positions=positions.int(),
        )
        with warnings.catch_warnings():  # torch warns once a process
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            pattern._with_entries(torch.zeros(positions.numel()))
        return pattern

    def product(self, weights: Tensor, values: Tensor) -> Tensor:
        """Multiply the matrix of weights ``[E, H]`` with values ``[columns, H, D]``: ``[rows, H, D]``."""
        entries, flat = weights.flatten().index_select(0, self.order), values.flatten(0, 1)
        bags = embedding_bag(
            self.columns, flat, self.pointers, mode="sum", per_sample_weights=entries, include_last_offset=True
        )
        return bags.view(-1, *values.shape[1:])

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Multiply rows ``[rows * H, D]`` with those ``[columns * H, D]`` that edges connect: ``[E * H]``."""
        # torch's loop over a width that fills no vector is slow
        missing = -left.size(-1) % 8
        if missing:
            left, right = (pad(x, (0, missing)) for x in (left, right))
        pattern = self._with_entries(left.new_zeros(self.order.numel()))
        products: Tensor = torch.sparse.sampled_addmm(pattern, left, right.mT, beta=0).values()
        return products.index_select(0, self.positions)

    def _with_entries(self, entries: Tensor) -> Tensor:
        return torch.sparse_csr_tensor(self.pointers, self.columns, entries, self.shape, check_invariants=False)


def _shifted(scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Subtract from scores a bound of their segment, so that exp neither overflows nor underflows where it counts."""
    if mask is None and scores.is_cpu and scores.numel():
        low, high = torch.aminmax(scores)
        if high - low < 40:  # one bound serves all segments: exp(-40) is far from underflow
            return scores - high
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    # in place, here and below: on a CPU a new tensor costs more than a pass over an old one
    return segments.gather(segments.max(scores)).neg_().add_(scores)


def _totals(exponentials: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Sum each segment, ``[..., count, H]``; at least the smallest float, so that empty segments divide."""
    if mask is not None:
        exponentials.masked_fill_(~mask, 0)
    total = segments.total(exponentials)
    return total.clamp_(min=torch.finfo(total.dtype).tiny)


def _take(values: Tensor, index: Tensor, dim: int) -> Tensor:
    """Compute ``values.index_select(dim, index)``; on a CPU torch's is many times slower on strided tensors."""
    return values.contiguous().index_select(dim, index)


# In plain PyTorch: slower, for second derivatives and torch.func, which can neither differentiate nor map over ours.


def _plain_spread(values: Tensor, segments: Segments, *, dim: int = -2) -> Tensor:
    return values.index_select(dim, segments.index)


def _plain_sum(values: Tensor, segments: Segments, *, dim: int = -2) -> Tensor:
    shape = list(values.shape)
    shape[dim] = segments.count
    return values.new_zeros(shape).index_add(dim, segments.index, values)


def _plain_gradients(
    grad: Tensor, weights: Tensor, values: Tensor, sources: Segments, targets: Segments
) -> tuple[Tensor, Tensor]:
    """Compute gradients of :func:`segment_aggregate` by weights and values, which can be differentiated again."""
    messages = _plain_spread(grad, targets, dim=-3)
    by_weights = (messages * _plain_spread(values, sources, dim=-3)).sum(-1)
    by_values = _plain_sum(messages * weights.unsqueeze(-1), sources, dim=-3)
    return by_weights.sum_to_size(weights.shape), by_values.sum_to_size(values.shape)


def _plain_log_softmax(scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    least, tiny = torch.finfo(scores.dtype).min, torch.finfo(scores.dtype).tiny
    if mask is not None:
        scores = scores.masked_fill(~mask, least)
    index = segments.index.unsqueeze(-1).expand(scores.shape)
    lowest = scores.new_full((*scores.shape[:-2], segments.count, scores.size(-1)), least)
    shifted = scores - _plain_spread(lowest.scatter_reduce(-2, index, scores.detach(), "amax"), segments)
    exponentials = shifted.exp() if mask is None else shifted.exp().masked_fill(~mask, 0)
    log_weights = shifted - _plain_spread(_plain_sum(exponentials, segments).clamp(min=tiny).log(), segments)
    return log_weights if mask is None else log_weights.masked_fill(~mask, 0)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, values: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        return segments.gather(values)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.segments), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, values: Tensor, segments: Segments) -> Tensor:
        ctx.segments = segments
        return segments.total(values)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None]:
        return _spread(grad, ctx.segments), None


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
        exponentials = _shifted(scores, segments, mask).exp_()
        weights = exponentials.div_(segments.gather(_totals(exponentials, segments, mask)))
        ctx.save_for_backward(weights)
        ctx.segments = segments
        return weights

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        weighted = grad * weights
        total = _spread(_sum(weighted, ctx.segments), ctx.segments)
        return torch.addcmul(weighted, weights, total, value=-1), None, None


class _SegmentLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
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
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        exponentials, totals, mask, log_weights = ctx.saved_tensors
        if mask is not None:
            grad = grad.masked_fill(~mask, 0)
        if torch.is_grad_enabled():  # the result can be differentiated again, the exponentials cannot
            weights = log_weights.exp() if mask is None else log_weights.exp().masked_fill(~mask, 0)
            return grad - weights * _spread(_sum(grad, ctx.segments), ctx.segments), None, None
        share = ctx.segments.gather(ctx.segments.total(grad).div_(totals))
        return torch.addcmul(grad, share, exponentials, value=-1), None, None


class _SegmentAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, weights: Tensor, values: Tensor, sources: Segments, targets: Segments) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.segments = sources, targets
        messages, factors = sources.gather(values, dim=-3), weights.unsqueeze(-1)
        # in place where possible: the messages are the largest tensor of a layer
        fits = torch.broadcast_shapes(messages.shape, factors.shape) == messages.shape
        messages = messages.mul_(factors) if fits else messages * factors
        return torch.unflatten(targets.total(messages.flatten(-2)), -1, messages.shape[-2:])

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, values = ctx.saved_tensors
        sources, targets = ctx.segments
        if torch.is_grad_enabled():
            return *_plain_gradients(grad, weights, values, sources, targets), None, None
        messages, grad_weights, grad_values = targets.gather(grad, dim=-3), None, None
        if ctx.needs_input_grad[0]:
            gathered = sources.gather(values, dim=-3)
            products = gathered.mul_(messages) if gathered.shape == messages.shape else gathered * messages
            grad_weights = products.sum(-1).sum_to_size(weights.shape)
        if ctx.needs_input_grad[1]:
            total = sources.total(messages.mul_(weights.unsqueeze(-1)).flatten(-2))
            grad_values = total.unflatten(-1, messages.shape[-2:]).sum_to_size(values.shape)
        return grad_weights, grad_values, None, None


class _HeadProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, weights: Tensor, values: Tensor, sources: Segments, targets: Segments) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.segments = sources, targets
        return targets.pattern(sources, weights.size(-1)).product(weights, values)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, values = ctx.saved_tensors
        sources, targets = ctx.segments
        # torch's product on a pattern takes no more entries than the matrix has places
        crowded = len(weights) > len(grad) * len(values) * weights.size(-1)
        if crowded or torch.is_grad_enabled():
            return *_plain_gradients(grad, weights, values, sources, targets), None, None
        heads, grad_weights, grad_values = weights.size(-1), None, None
        if ctx.needs_input_grad[0]:
            dot = targets.pattern(sources, heads).dot(grad.flatten(0, 1), values.flatten(0, 1))
            grad_weights = dot.view_as(weights)
        if ctx.needs_input_grad[1]:
            grad_values = sources.pattern(targets, heads).product(weights, grad)
        return grad_weights, grad_values, None, None


# torch leaves `apply` untyped in some releases
_spread: Callable[..., Tensor] = _Spread.apply
_sum: Callable[..., Tensor] = _Sum.apply
_segment_softmax: Callable[..., Tensor] = _SegmentSoftmax.apply
_segment_log_softmax: Callable[..., Tensor] = _SegmentLogSoftmax.apply
_segment_aggregate: Callable[..., Tensor] = _SegmentAggregate.apply
_head_product: Callable[..., Tensor] = _HeadProduct.apply


def segment_softmax(scores: Tensor, segments: Segments, *, mask: Tensor | None = None) -> Tensor:
    """Normalize scores over the edges of each segment; masked edges and empty segments get exactly zero.

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
        weights = _plain_log_softmax(scores, segments, mask).exp()
        return weights if mask is None else weights.masked_fill(~mask, 0)
    return _segment_softmax(as_float(scores), segments, mask).to(scores.dtype)


def segment_log_softmax(scores: Tensor, segments: Segments, *, mask: Tensor | None = None) -> Tensor:
    """Return the logarithm of :func:`segment_softmax`; masked entries are 0 (finite), so exclude them by the mask.

    Example:
        >>> segment_log_softmax(torch.zeros(1, 1), Segments(torch.tensor([0]), 1)).item()
        0.0
    """
    if in_transform(scores):
        return _plain_log_softmax(scores, segments, mask)
    return _segment_log_softmax(as_float(scores), segments, mask).to(scores.dtype)


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
        return _plain_sum(weights.unsqueeze(-1) * _plain_spread(values, sources, dim=-3), targets, dim=-3)
    if weights.is_cpu and values.dim() == 3 and weights.shape[1:] == values.shape[1:2] and _same_float(weights, values):
        return _head_product(weights, values, sources, targets)
    return _segment_aggregate(weights, values, sources, targets)


def _same_float(*tensors: Tensor) -> bool:
    """Return whether all are float32 or all float64, and stay so: there is no sparse product in half precision."""
    cast = torch.is_autocast_enabled(tensors[0].device.type)
    return not cast and {x.dtype for x in tensors} in ({torch.float32}, {torch.float64})
