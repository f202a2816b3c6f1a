"""Reductions over the edges of each node in plain PyTorch: slower, for second derivatives and ``torch.func``.

What :mod:`pyro_attention.ops.segment` does with backward passes of its own, which torch can neither differentiate again
nor map over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pyro_attention.ops.segment import Segments

__all__ = ["plain_aggregate", "plain_gradients", "plain_log_softmax", "plain_softmax", "plain_spread", "plain_sum"]


def plain_spread(values: Tensor, segments: Segments, *, dim: int = -2) -> Tensor:
    """Values of the segments, ``[..., count, H]``, at their edges ``[..., E, H]``."""
    return values.index_select(dim, segments.index)


def plain_sum(values: Tensor, segments: Segments, *, dim: int = -2) -> Tensor:
    """Sum of ``[..., E, H]`` over the edges of each segment: ``[..., count, H]``."""
    shape = list(values.shape)
    shape[dim] = segments.count
    return values.new_zeros(shape).index_add(dim, segments.index, values)


def plain_aggregate(weights: Tensor, values: Tensor, sources: Segments, targets: Segments) -> Tensor:
    """``[..., E, H] x [..., N, H, D] -> [..., targets, H, D]``."""
    return plain_sum(weights.unsqueeze(-1) * plain_spread(values, sources, dim=-3), targets, dim=-3)


def plain_gradients(
    grad: Tensor, weights: Tensor, values: Tensor, sources: Segments, targets: Segments
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`plain_aggregate` by the weights and the values, which can be differentiated again."""
    messages = plain_spread(grad, targets, dim=-3)
    by_weights = (messages * plain_spread(values, sources, dim=-3)).sum(-1)
    by_values = plain_sum(messages * weights.unsqueeze(-1), sources, dim=-3)
    return by_weights.sum_to_size(weights.shape), by_values.sum_to_size(values.shape)


def plain_softmax(scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Softmax over the edges of each segment; zero at masked edges."""
    exponentials, totals, _ = _exponentials(scores, segments, mask)
    return exponentials / plain_spread(totals, segments)


def plain_log_softmax(scores: Tensor, segments: Segments, mask: Tensor | None) -> Tensor:
    """Its logarithm; zero at masked edges, too."""
    _, totals, shifted = _exponentials(scores, segments, mask)
    log_weights = shifted - plain_spread(totals.log(), segments)
    return log_weights if mask is None else log_weights.masked_fill(~mask, 0)


def _exponentials(scores: Tensor, segments: Segments, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Exponentials of shifted scores, their sums, at least the smallest float, and these scores."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    index = segments.index.unsqueeze(-1).expand(scores.shape)
    lowest = scores.new_full((*scores.shape[:-2], segments.count, scores.size(-1)), torch.finfo(scores.dtype).min)
    highest = lowest.scatter_reduce(-2, index, scores.detach(), "amax")
    shifted = scores - plain_spread(highest, segments)
    exponentials = shifted.exp() if mask is None else shifted.exp().masked_fill(~mask, 0)
    return exponentials, plain_sum(exponentials, segments).clamp(min=torch.finfo(scores.dtype).tiny), shifted
