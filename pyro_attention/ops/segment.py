"""Softmax over the incoming edges of each node, and weighted sums along edges.

Edges stand at dimension -2 of the scores ``[..., edges, heads]``; ``index`` ``[edges]`` names the target node of
each edge. Backward passes are written out: they save one tensor instead of five.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["segment_aggregate", "segment_log_softmax", "segment_softmax", "segment_sum"]


def segment_sum(values: Tensor, index: Tensor, num_segments: int) -> Tensor:
    """Sum ``values [..., edges, heads]`` over the edges of each segment: ``[..., segments, heads]``.

    Example:
        >>> segment_sum(torch.ones(3, 1), torch.tensor([0, 0, 2]), 3).flatten().tolist()
        [2.0, 0.0, 1.0]
    """
    shape = (*values.shape[:-2], num_segments, values.shape[-1])
    return values.new_zeros(shape).index_add_(-2, index, values)


def _shifted(scores: Tensor, index: Tensor, num_segments: int, mask: Tensor | None) -> Tensor:
    """Scores minus the largest unmasked score of their segment; masked entries become the lowest float."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    shape = (*scores.shape[:-2], num_segments, scores.shape[-1])
    where = index.unsqueeze(-1).expand(scores.shape)
    highest = scores.new_full(shape, -torch.inf).scatter_reduce_(-2, where, scores, "amax")
    return scores - highest.index_select(-2, index)


def _normaliser(exponentials: Tensor, index: Tensor, num_segments: int, mask: Tensor | None) -> Tensor:
    """Sum of each segment, spread to its edges; at least the smallest float, so empty segments divide."""
    if mask is not None:
        exponentials.masked_fill_(~mask, 0)
    total = segment_sum(exponentials, index, num_segments)
    return total.clamp_(min=torch.finfo(total.dtype).tiny).index_select(-2, index)


class _SegmentSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, index: Tensor, num_segments: int, mask: Tensor | None) -> Tensor:
        exponentials = _shifted(scores, index, num_segments, mask).exp_()
        weights = exponentials.div_(_normaliser(exponentials, index, num_segments, mask))
        ctx.save_for_backward(weights, index)
        ctx.num_segments = num_segments
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        weights, index = ctx.saved_tensors
        weighted = grad * weights
        total = segment_sum(weighted, index, ctx.num_segments).index_select(-2, index)
        return weighted.addcmul_(weights, total, value=-1), None, None, None


class _SegmentLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, index: Tensor, num_segments: int, mask: Tensor | None) -> Tensor:
        shifted = _shifted(scores, index, num_segments, mask)
        log_weights = shifted - _normaliser(shifted.exp(), index, num_segments, mask).log_()
        if mask is not None:
            log_weights.masked_fill_(~mask, 0)
        ctx.save_for_backward(log_weights, index, mask)
        ctx.num_segments = num_segments
        return log_weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        log_weights, index, mask = ctx.saved_tensors
        if mask is not None:
            grad = grad.masked_fill(~mask, 0)
        total = segment_sum(grad, index, ctx.num_segments).index_select(-2, index)
        result = torch.addcmul(grad, log_weights.exp(), total, value=-1)
        return (result if mask is None else result.masked_fill_(~mask, 0)), None, None, None


class _SegmentAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, source: Tensor, target: Tensor, num_targets: int) -> Tensor:
        messages = values.index_select(-3, source) * weights.unsqueeze(-1)
        shape = (*messages.shape[:-3], num_targets, *messages.shape[-2:])
        ctx.save_for_backward(weights, values, source, target)
        return messages.new_zeros(shape).index_add_(-3, target, messages)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        weights, values, source, target = ctx.saved_tensors
        spread = grad.index_select(-3, target)
        grad_weights = grad_values = None
        if ctx.needs_input_grad[0]:
            grad_weights = (spread * values.index_select(-3, source)).sum(-1).sum_to_size(weights.shape)
        if ctx.needs_input_grad[1]:
            messages = spread.mul_(weights.unsqueeze(-1))
            shape = (*messages.shape[:-3], *values.shape[-3:])
            grad_values = messages.new_zeros(shape).index_add_(-3, source, messages)
            grad_values = grad_values.sum_to_size(values.shape)
        return grad_weights, grad_values, None, None, None


# torch leaves `apply` untyped in some releases
_segment_softmax: Callable[..., Tensor] = _SegmentSoftmax.apply
_segment_log_softmax: Callable[..., Tensor] = _SegmentLogSoftmax.apply
_segment_aggregate: Callable[..., Tensor] = _SegmentAggregate.apply


def segment_softmax(scores: Tensor, index: Tensor, *, num_segments: int, mask: Tensor | None = None) -> Tensor:
    """Softmax over the edges of each segment; masked edges and empty segments get exactly zero.

    Args:
        scores: ``[..., edges, heads]``, finite.
        index: Segment of each edge, int64 ``[edges]`` in ``0 .. num_segments - 1``.
        num_segments: Number of segments (target nodes).
        mask: True where an edge counts; boolean, broadcastable to the scores.

    Returns:
        Weights ``[..., edges, heads]``, summing to one over each segment with an unmasked edge.

    Example:
        >>> segment_softmax(torch.zeros(3, 1), torch.tensor([0, 0, 1]), num_segments=2).flatten().tolist()
        [0.5, 0.5, 1.0]
    """
    return _segment_softmax(scores, index, num_segments, mask)


def segment_log_softmax(scores: Tensor, index: Tensor, *, num_segments: int, mask: Tensor | None = None) -> Tensor:
    """Logarithm of :func:`segment_softmax`; masked entries are 0 (finite), to be excluded by the same mask.

    Example:
        >>> segment_log_softmax(torch.zeros(1, 1), torch.tensor([0]), num_segments=1).item()
        0.0
    """
    return _segment_log_softmax(scores, index, num_segments, mask)


def segment_aggregate(weights: Tensor, values: Tensor, source: Tensor, target: Tensor, *, num_targets: int) -> Tensor:
    """Sum the values of the source nodes, weighted per edge, into the target nodes.

    Args:
        weights: ``[..., edges, heads]``.
        values: ``[..., nodes, heads, width]``.
        source: Source node of each edge, int64 ``[edges]``.
        target: Target node of each edge, int64 ``[edges]``.
        num_targets: Number of target nodes.

    Returns:
        ``[..., targets, heads, width]``.

    Example:
        >>> edge = torch.tensor([0])
        >>> segment_aggregate(torch.full((1, 1), 2.0), torch.ones(1, 1, 3), edge, edge, num_targets=1).tolist()
        [[[2.0, 2.0, 2.0]]]
    """
    return _segment_aggregate(weights, values, source, target, num_targets)
