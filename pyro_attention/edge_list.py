"""Attention along the edges of a graph: the layout of graph attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pyro_attention._checks import check_boolean_mask, check_mask_fits, in_transform
from pyro_attention._compat import validates_distributions
from pyro_attention.layout import Layout
from pyro_attention.ops.segment import Segments, segment_aggregate, segment_log_softmax, segment_softmax

__all__ = ["EdgeList", "check_edge_index"]

# The last layout of a tensor of edges, for the layers and steps that meet the same one.
_BUILT = WeakIdKeyDictionary()


@dataclass(frozen=True, eq=False)
class EdgeList(Layout):
    """Attention along the edges of a graph: scores ``[..., E, H]``, keys and values ``[..., N, H, D]``.

    Node i attends to the sources of its in-edges. Build one by :meth:`from_edge_index`; added self loops are the
    last ``num_targets`` edges, so the first ones stay aligned with the input.

    Args:
        sources: Source node of each edge.
        targets: Target node of each edge.
        num_input_edges: Number of edges that the user passed, without added self loops.
        mask: True where an edge counts, boolean ``[E, 1]``.

    Raises:
        TypeError: The mask is not boolean.
        ValueError: It has another shape.

    Example:
        >>> graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2, add_self_loops=True)
        >>> graph.sources.index.tolist(), graph.targets.index.tolist()
        ([0, 1, 0, 1], [1, 0, 0, 1])
    """

    sources: Segments
    targets: Segments
    num_input_edges: int
    mask: Tensor | None = None

    event_dim = 2
    head_dim = -1  # overrides the property: all edge lists have their heads last

    def __post_init__(self) -> None:
        check_boolean_mask(self.mask)
        edges = self.sources.index.numel()
        if self.mask is not None and self.mask.shape != (edges, 1):
            raise ValueError(f"mask has shape {tuple(self.mask.shape)}, expected [{edges}, 1], an entry for each edge")

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, *, num_nodes: int | tuple[int, int], add_self_loops: bool = False
    ) -> EdgeList:
        """Build the layout of PyG's ``edge_index`` (sources in row 0, targets in row 1); later calls reuse it.

        Args:
            edge_index: int64 or int32 ``[2, E]``, or a sparse matrix, PyG's ``adj_t``, with a row for each target.
            num_nodes: Number of nodes, or (sources, targets) of a bipartite graph.
            add_self_loops: Give every node exactly one self loop, behind the input edges. Self loops among the
                input edges are then masked (weight zero), as PyG replaces them.

        Raises:
            TypeError: ``edge_index`` holds no integers.
            ValueError: Wrong shape, an index out of range, or self loops on a bipartite graph.
        """
        num_sources, num_targets = (num_nodes, num_nodes) if isinstance(num_nodes, int) else num_nodes
        if in_transform(edge_index) or edge_index.is_inference():
            return cls._build(edge_index, num_sources, num_targets, add_self_loops)
        asked = edge_index._version, num_sources, num_targets, add_self_loops
        built: tuple[object, EdgeList] | None = _BUILT.get(edge_index)
        if built is None or built[0] != asked or not built[1]._holds(edge_index):
            with torch.inference_mode(False):  # a training step, which has gradients, may meet it next
                built = _BUILT[edge_index] = asked, cls._build(edge_index, *asked[1:])
        return built[1]

    @classmethod
    def _build(cls, edge_index: Tensor, num_sources: int, num_targets: int, add_self_loops: bool) -> EdgeList:
        if edge_index.layout != torch.strided:
            edge_index = edge_index.to_sparse_coo().coalesce().indices().flip(0)
        check_edge_index(edge_index, num_sources=num_sources, num_targets=num_targets)
        source, target = edge_index.long().clone()  # views would keep the whole alive
        if not add_self_loops:
            return cls(Segments(source, num_sources), Segments(target, num_targets), edge_index.size(1))
        if num_sources != num_targets:
            actual = f"{num_sources} sources and {num_targets} targets"
            raise ValueError(f"add_self_loops needs one set of nodes, got {actual}; pass add_self_loops=False")
        loops = torch.arange(num_targets, device=edge_index.device)
        replaced = source == target
        mask = None
        # elsewhere than on a CPU one would have to wait for the answer
        if torch.compiler.is_exporting() or not replaced.is_cpu or replaced.any():
            mask = torch.cat([~replaced, torch.ones_like(loops, dtype=torch.bool)]).unsqueeze(-1)
        source, target = torch.cat([source, loops]), torch.cat([target, loops])
        return cls(Segments(source, num_sources), Segments(target, num_targets), edge_index.size(1), mask)

    def _holds(self, edge_index: Tensor) -> bool:
        """Return whether the edges are those of a tensor; NumPy and ``.data`` change one without a new version."""
        if edge_index.layout != torch.strided or not edge_index.is_cpu:  # one would have to wait for the answer
            return True
        if edge_index.shape != (2, self.num_input_edges):
            return False
        ends = (self.sources.index[: self.num_input_edges], self.targets.index[: self.num_input_edges])
        return all(torch.equal(end, row) for end, row in zip(ends, edge_index.long(), strict=True))

    def to(self, device: torch.device | str) -> EdgeList:
        """Return the layout on another device; itself when it is there already."""
        if torch.device(device) == self.sources.index.device:
            return self
        mask = None if self.mask is None else self.mask.to(device)
        return EdgeList(self.sources.to(device), self.targets.to(device), self.num_input_edges, mask)

    @property
    def has_self_loops(self) -> bool:
        """Whether self loops were appended behind the input edges."""
        return self.sources.index.numel() > self.num_input_edges

    def check(self, scores: Tensor, *, site: str) -> None:
        edges = self.sources.index
        if scores.dim() < 2 or scores.size(-2) != edges.numel():
            problem = f"scores of shape {tuple(scores.shape)} do not fit {edges.numel()} edges"
            raise ValueError(f"site '{site}': {problem}; expected [..., edges, heads]")
        check_mask_fits(self.mask, scores, site=site)

    def check_values(self, values: Tensor, scores: Tensor, *, site: str) -> None:
        nodes, heads = self.sources.count, scores.size(-1)
        if values.dim() < 3 or values.size(-3) != nodes or values.size(-2) not in (1, heads):
            problem = f"values of shape {tuple(values.shape)} do not fit scores of shape {tuple(scores.shape)}"
            raise ValueError(
                f"site '{site}': {problem}; expected [..., nodes, heads, width] with nodes = {nodes} and heads = "
                f"{heads} or 1; where that dimension is missing, values.unsqueeze(-2) adds it"
            )

    def heads_first(self, keys: Tensor) -> Tensor:
        return keys.transpose(-3, -2)

    @cached_property
    def candidates(self) -> Segments:
        """Targets of all edges, and behind them the targets without an unmasked edge."""
        with torch.inference_mode(False):  # it is kept for training steps, which have gradients
            index = self.targets.index if self.mask is None else self.targets.index[self.mask.squeeze(-1)]
            without = (torch.bincount(index, minlength=self.targets.count) == 0).nonzero().squeeze(-1)
            rows = torch.cat([self.targets.index, without])
            return Segments(rows, self.targets.count) if len(without) else self.targets

    def spread_keys(self, values: Tensor) -> Tensor:
        return self.sources.spread(values.transpose(-1, -2))

    def spread_queries(self, values: Tensor) -> Tensor:
        return self.targets.spread(values.transpose(-1, -2))

    def log_softmax(self, scores: Tensor, *, over_queries: bool = False) -> Tensor:
        return segment_log_softmax(scores, self.sources if over_queries else self.targets, mask=self.mask)

    def softmax(self, scores: Tensor) -> Tensor:
        return segment_softmax(scores, self.targets, mask=self.mask)

    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """Compute ``[..., E, H] x [..., N, H, D] -> [..., targets, H, D]``."""
        return segment_aggregate(weights, values, sources=self.sources, targets=self.targets)


def check_edge_index(edge_index: Tensor, *, num_sources: int, num_targets: int) -> None:
    """Raise TypeError or ValueError unless ``edge_index`` is int64 or int32 ``[2, E]`` with indices in range."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise ValueError(f"edge_index has shape {tuple(edge_index.shape)}, expected [2, edges]")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"edge_index has dtype {edge_index.dtype}, expected torch.int64; convert it with .long()")
    validates = validates_distributions()
    if not validates or in_transform(edge_index) or edge_index.size(1) == 0:  # there are no numbers to look at
        return
    for row, (name, size) in enumerate((("source", num_sources), ("target", num_targets))):
        low, high = edge_index[row].min().item(), edge_index[row].max().item()
        if low < 0 or high >= size:
            problem = f"edge_index names {name} nodes {low} to {high}, expected 0 to {size - 1}"
            raise ValueError(f"{problem}; check num_nodes or renumber the nodes")
