"""Credible intervals of the attention weights of a graph, each with the edge that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention.analysis.alignments.weights import CredibleIntervals
from pyro_attention.analysis.inputs import ROUNDING, check_samples, equal_tailed
from pyro_attention.edge_list import check_edge_index

__all__ = ["EdgeIntervals", "edge_intervals"]


@dataclass(frozen=True)
class EdgeIntervals(CredibleIntervals):
    """Mean and equal-tailed credible interval of every edge's weight, each ``[E, H]``, in the order of the samples.

    Attributes:
        source: Source node of each edge, int64 ``[E]``; self loops that the layer added stand behind the input edges.
        target: Target node of each edge, int64 ``[E]``.
        added: Whether an edge is a self loop that the layer added, boolean ``[E]``.
    """

    source: Tensor
    target: Tensor
    added: Tensor


def edge_intervals(samples: Tensor, edge_index: Tensor, *, level: float = 0.9) -> EdgeIntervals:
    r"""Return the intervals of edge weights that leave :math:`(1 - \mathrm{level}) / 2` of the samples on either side.

    :class:`GraphAttention` appends one self loop for every node (``add_self_loops=True``): the samples then have as
    many rows more than ``edge_index`` as there are nodes, and these are labeled node by node. Self loops in
    ``edge_index`` itself it replaces: their weight is zero in every sample. Each interval is that of one weight, not
    of all in-edges of a node at once.

    Args:
        samples: Weights ``[S, E, H]`` of :func:`sample_posterior`, S at least 2, with added self loops or without.
        edge_index: int64 ``[2, E]``, sources in row 0: the edges that the layer was given, in the same order.
        level: Posterior mass in (0, 1).

    Raises:
        TypeError: Samples are no floats, or ``edge_index`` is not int64.
        ValueError: Wrong shapes, a single sample, another number of edges, weights outside [0, 1] or that do not sum
            to one over the in-edges of a node, or a level outside (0, 1).

    Example:
        >>> from pyro_attention import AttentionGuide, GraphAttention, Weibull, sample_posterior
        >>> layer, x = GraphAttention(5, 8, heads=2), torch.randn(3, 5)
        >>> edge_index = torch.tensor([[0, 1], [1, 2]])
        >>> guide = AttentionGuide(lambda: layer(x, edge_index), Weibull())
        >>> found = edge_intervals(sample_posterior(guide, num_samples=50)["graph_attention"], edge_index)
        >>> list(zip(found.source.tolist(), found.target.tolist(), found.added.tolist()))
        [(0, 1, False), (1, 2, False), (0, 0, True), (1, 1, True), (2, 2, True)]
        >>> found.mean.shape
        torch.Size([5, 2])
    """
    checked = check_samples("samples", samples, axes="E, H", min_samples=2)
    if not ((checked >= 0) & (checked <= 1 + ROUNDING)).all():
        raise ValueError("samples have entries outside [0, 1] or NaN; leave out log_weights=True of sample_posterior")
    nodes = int(edge_index.max()) + 1 if edge_index.numel() else 0
    check_edge_index(edge_index, num_sources=nodes, num_targets=nodes)
    edges, loops = edge_index.size(1), samples.size(1) - edge_index.size(1)
    if loops < 0 or 0 < loops < nodes:
        raise ValueError(
            f"samples hold {samples.size(1)} edges, edge_index {edges} between {nodes} nodes; expected {edges}, or at "
            f"least {edges + nodes} where the layer added a self loop for every node"
        )
    source, target = torch.cat([edge_index, torch.arange(loops, device=edge_index.device).expand(2, -1)], 1)
    index, count = target.to(checked.device), max(nodes, loops)
    sums = checked.new_zeros(len(checked), count, checked.size(2)).index_add_(1, index, checked)
    wrong = ((sums - 1).abs() > ROUNDING) & (sums > 1e-6)  # or zero where no edge counts
    if wrong.any():
        raise ValueError(
            f"the weights of the in-edges of node {int(wrong.nonzero()[0, 1])} sum to {sums[wrong][0].item():.4g}, "
            f"expected 1; give the edge_index that the layer was given, in the same order, with sources in row 0"
        )
    added = torch.arange(edges + loops, device=source.device) >= edges
    return EdgeIntervals(*equal_tailed(checked, level), level, source, target, added)
