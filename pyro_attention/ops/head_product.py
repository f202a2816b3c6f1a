"""Products of per-edge attention weights with per-node values as products of sparse matrices, on a CPU.

The weights ``[E, H]`` of a graph are the entries of a matrix with a row for each target and head and a column for each
source and head. Its product with the values never holds what an edge carries, ``[E, H, D]``: less than half of the time
and a fraction of the memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_attention.ops.plain_segment import plain_gradients

if TYPE_CHECKING:
    from pyro_attention.ops.segment import Segments

__all__ = ["HeadPattern", "head_product"]


@dataclass(frozen=True, eq=False)
class HeadPattern:
    """Where the weights of edges and heads stand in the matrix; prepared once for many products."""

    index: Tensor  # column segment of each edge
    shape: tuple[int, int]  # rows times heads, columns times heads
    pointers: Tensor  # start of each row's entries, int32
    columns: Tensor  # column of each entry, int32
    order: Tensor  # position of each entry in the flattened weights, int32
    positions: Tensor  # entry of each weight, [E * H], int32

    @classmethod
    def of(cls, rows: Segments, columns: Segments, heads: int) -> HeadPattern:
        """Pattern with the edges of each row and head side by side."""
        start, degree = rows.offsets[rows.index], rows.offsets.diff()
        rank = torch.empty_like(rows.order).scatter_(0, rows.order, torch.arange(len(rows.order)))
        head = torch.arange(heads)
        positions = ((rank + start * (heads - 1)).unsqueeze(-1) + degree[rows.index].unsqueeze(-1) * head).flatten()

        def place(of_weights: Tensor) -> Tensor:
            return torch.empty_like(of_weights).scatter_(0, positions, of_weights).int()

        pattern = cls(
            index=columns.index,
            shape=(rows.count * heads, columns.count * heads),
            pointers=torch.nn.functional.pad(degree.repeat_interleave(heads).cumsum(0), (1, 0)).int(),
            columns=place((columns.index.unsqueeze(-1) * heads + head).flatten()),
            order=place(torch.arange(positions.numel())),
            positions=positions.int(),
        )
        with warnings.catch_warnings():  # torch warns once a process
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            pattern._with_entries(torch.zeros(positions.numel()))
        return pattern

    def matrix(self, weights: Tensor) -> Tensor:
        """The sparse matrix of weights ``[E, H]``."""
        return self._with_entries(weights.flatten().index_select(0, self.order))

    def dot(self, left: Tensor, right: Tensor) -> Tensor:
        """Products of the rows ``[rows * H, D]`` with those ``[columns * H, D]`` that edges connect: ``[E * H]``."""
        # torch's loop over a width that fills no vector is slow
        missing = -left.size(-1) % 8
        if missing:
            left, right = (torch.nn.functional.pad(x, (0, missing)) for x in (left, right))
        pattern = self._with_entries(left.new_zeros(self.order.numel()))
        products: Tensor = torch.sparse.sampled_addmm(pattern, left, right.mT, beta=0).values()
        return products.index_select(0, self.positions)

    def _with_entries(self, entries: Tensor) -> Tensor:
        return torch.sparse_csr_tensor(self.pointers, self.columns, entries, self.shape, check_invariants=False)


class _HeadProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor, sources: Segments, targets: Segments) -> Tensor:
        ctx.save_for_backward(weights, values)
        ctx.segments = sources, targets
        heads = weights.size(-1)
        product = targets.pattern(sources, heads).matrix(weights) @ values.flatten(0, 1)
        return torch.unflatten(product, 0, (-1, heads))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        weights, values = ctx.saved_tensors
        sources, targets = ctx.segments
        # torch's product on a pattern takes no more entries than the matrix has places
        crowded = len(weights) > len(grad) * len(values) * weights.size(-1)
        if crowded or torch.is_grad_enabled():
            return *plain_gradients(grad, weights, values, sources, targets), None, None
        heads, grad, grad_weights, grad_values = weights.size(-1), grad.flatten(0, 1), None, None
        if ctx.needs_input_grad[0]:
            grad_weights = targets.pattern(sources, heads).dot(grad, values.flatten(0, 1)).view_as(weights)
        if ctx.needs_input_grad[1]:
            grad_values = (sources.pattern(targets, heads).matrix(weights) @ grad).view_as(values)
        return grad_weights, grad_values, None, None


_head_product: Callable[..., Tensor] = _HeadProduct.apply


def head_product(weights: Tensor, values: Tensor, *, sources: Segments, targets: Segments) -> Tensor:
    """Sum the values of the source nodes, weighted per edge, into the target nodes.

    Args:
        weights: ``[E, H]``, float32 or float64, on a CPU.
        values: ``[N, H, D]``, of the same dtype.
        sources: Source node of each edge.
        targets: Target node of each edge.

    Returns:
        ``[targets, H, D]``.

    Example:
        >>> from pyro_attention.ops.segment import Segments
        >>> node = Segments(torch.tensor([0]), 1)
        >>> head_product(torch.full((1, 1), 2.0), torch.ones(1, 1, 3), sources=node, targets=node).tolist()
        [[[2.0, 2.0, 2.0]]]
    """
    return _head_product(weights, values, sources, targets)
