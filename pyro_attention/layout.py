"""Where attention weights live: on a dense query x key grid, or on the edges of a graph.

A layout is the small interface between the probabilistic part (which only knows entries of ``log S``) and the
shape of the data: it masks, normalises, spreads per-key quantities and aggregates values. Shapes: B batch, H heads,
M queries, N keys or nodes, D width, E edges.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor

from pyro_attention._checks import check_boolean_mask, check_device, check_edge_index, check_mask_fits
from pyro_attention.ops.segment import Segments, segment_aggregate, segment_log_softmax, segment_softmax

__all__ = ["Dense", "EdgeList", "Layout"]


class Layout(ABC):
    """What the library asks of a layout.

    Attributes:
        event_dim: Number of rightmost dimensions of the scores that belong to one attention site.
        head_dim: Dimension of the heads in the scores, negative.
        mask: True where a query may attend; boolean, broadcastable to the scores; None when nothing is masked.
        counted: True for the queries whose weights count in densities, entropies and KL; None when all do.
    """

    event_dim: int
    head_dim: int
    mask: Tensor | None
    counted: Tensor | None = None

    @property
    def kept(self) -> Tensor | None:
        """True at the entries that count: unmasked, and of a query that counts; None when all do."""
        parts = [part for part in (self.mask, self.counted) if part is not None]
        return reduce(torch.logical_and, parts) if parts else None

    @abstractmethod
    def check(self, scores: Tensor, *, site: str) -> None:
        """Raise ValueError, naming the site, when the scores do not fit the layout."""

    @abstractmethod
    def num_keys(self, scores: Tensor) -> int:
        """Number of keys or source nodes."""

    def num_rows(self, scores: Tensor) -> Tensor | float | None:  # noqa: ARG002
        """Number of rows (a head of a query) that see any key, for each batch entry or all; None if not known."""
        return None

    @abstractmethod
    def heads_first(self, keys: Tensor) -> Tensor:
        """Keys of this layout as ``[..., H, N, D]``."""

    @abstractmethod
    def spread_keys(self, values: Tensor) -> Tensor:
        """Per-key values ``[..., H, N]`` in a shape that broadcasts against the scores."""

    @abstractmethod
    def log_softmax(self, scores: Tensor) -> Tensor:
        """Log softmax over the keys a query may attend to; masked entries become 0 (finite)."""

    @abstractmethod
    def softmax(self, scores: Tensor) -> Tensor:
        """Softmax over the keys a query may attend to; masked entries and empty rows become exactly 0."""

    @abstractmethod
    def log_softmax_over_queries(self, scores: Tensor) -> Tensor:
        """Log softmax over the queries that may attend to a key; masked entries become 0 (finite)."""

    @abstractmethod
    def sum_over_queries(self, weights: Tensor) -> Tensor:
        """Sum over the queries for every key, ``[..., H, N]``."""

    @abstractmethod
    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """Weighted sum of the values for every query."""

    def spread_heads(self, values: Tensor) -> Tensor:
        """Per-head values ``[H]`` in a shape that broadcasts against the scores."""
        return values.reshape(-1, *[1] * (-1 - self.head_dim))


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Layout):
    """Attention of every query to every key: scores ``[..., H, M, N]``, keys and values ``[..., H, N, D]``.

    Args:
        mask: Boolean, True = may attend, broadcastable to the scores, for example ``[B, 1, 1, N]`` for padding. A
            padded query is one that may attend to nothing; normalisation over queries needs these rows masked.
        event_dim: 3 when one site holds all queries (self-attention); 2 when queries lie in a plate, as where each
            target position has its own observation: scores ``[..., H, N]``.
        causal: Whether queries are steps in time that may not know of later ones: a statement, which changes no mask.
            Normalizers over queries refuse such attention. None: they look at the mask, and refuse one that looks
            causal.
        counted: Boolean ``[..., queries, 1]``, broadcastable to the scores in the dimensions ahead; True for queries
            whose weights count in the KL. The others draw weights, too, but nothing may depend on them: padded queries
            of a model that computes their output and does not use it. A mask of these rows would say the same, and
            take more memory: what is the same for all queries, such as a contextual prior, is then held once a query.

    Raises:
        TypeError: The mask or ``counted`` is not boolean.
        ValueError: ``event_dim`` is neither 2 nor 3, or 2 with ``counted``.

    Example:
        >>> layout = Dense(mask=torch.tensor([True, True, False]))
        >>> layout.softmax(torch.zeros(1, 1, 3)).tolist()
        [[[0.5, 0.5, 0.0]]]
    """

    mask: Tensor | None = None
    event_dim: int = 3
    causal: bool | None = None
    counted: Tensor | None = None

    def __post_init__(self) -> None:
        check_boolean_mask(self.mask)
        check_boolean_mask(self.counted)
        if self.event_dim not in (2, 3):
            raise ValueError(f"event_dim is {self.event_dim}, expected 3 (heads, queries, keys) or 2 (heads, keys)")
        if self.counted is not None and (self.event_dim == 2 or self.counted.dim() < 2 or self.counted.size(-1) != 1):
            raise ValueError(
                f"counted has shape {tuple(self.counted.shape)} and event_dim is {self.event_dim}, expected [..., "
                f"queries, 1] and event_dim 3; where queries lie in a plate, poutine.mask leaves some out"
            )

    def __repr__(self) -> str:
        mask = None if self.mask is None else tuple(self.mask.shape)
        return f"Dense(mask: {mask}, event_dim={self.event_dim}, causal={self.causal})"

    @property
    def head_dim(self) -> int:  # type: ignore[override]
        return -self.event_dim

    def check(self, scores: Tensor, *, site: str) -> None:
        if scores.dim() < self.event_dim:
            expected = "[..., heads, queries, keys]" if self.event_dim == 3 else "[..., heads, keys]"
            seen = f"scores of shape {tuple(scores.shape)} have fewer than {self.event_dim} dimensions"
            raise ValueError(f"site '{site}': {seen}; expected {expected}")
        for mask in (self.mask, self.counted):
            check_mask_fits(mask, scores, site=site)
        if self.counted is not None and self.counted.size(-2) != scores.size(-2):
            raise ValueError(
                f"site '{site}': counted has shape {tuple(self.counted.shape)} for {scores.size(-2)} queries, expected "
                f"an entry for each of them, [..., {scores.size(-2)}, 1]"
            )

    def heads_first(self, keys: Tensor) -> Tensor:
        return keys

    def num_keys(self, scores: Tensor) -> int:
        return scores.size(-1)

    def num_rows(self, scores: Tensor) -> Tensor | float:
        rows = scores.shape[-self.event_dim : -1]
        kept = self.kept
        if kept is None:
            return math.prod(rows) if scores.size(-1) else 0
        seeing = kept.any(-1)
        dims = tuple(range(1 - self.event_dim, 0))
        return seeing.expand(*seeing.shape[: 1 - self.event_dim], *rows).sum(dims).to(scores.dtype)

    def spread_keys(self, values: Tensor) -> Tensor:
        return values.unsqueeze(-2) if self.event_dim == 3 else values

    def _fill(self, scores: Tensor) -> Tensor:
        return scores if self.mask is None else scores.masked_fill(~self.mask, torch.finfo(scores.dtype).min)

    def _clear(self, values: Tensor) -> Tensor:
        return values if self.mask is None else values.masked_fill(~self.mask, 0)

    def log_softmax(self, scores: Tensor) -> Tensor:
        return self._clear(self._fill(scores).log_softmax(-1))

    def softmax(self, scores: Tensor) -> Tensor:
        return self._clear(self._fill(scores).softmax(-1))

    def log_softmax_over_queries(self, scores: Tensor) -> Tensor:
        self._check_queries()
        return self._clear(self._fill(scores).log_softmax(-2))

    def sum_over_queries(self, weights: Tensor) -> Tensor:
        self._check_queries()
        return weights.sum(-2)

    def _check_queries(self) -> None:
        if self.event_dim == 2:
            raise ValueError("event_dim is 2, so nothing runs over queries; expected Dense(event_dim=3), or Softmax()")

    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """``[..., H, M, N] x [..., H, N, D] -> [..., H, M, D]``; without M when queries lie in a plate."""
        if self.event_dim == 3:
            return weights @ values
        return (weights.unsqueeze(-2) @ values).squeeze(-2)


@dataclass(frozen=True, eq=False, repr=False)
class EdgeList(Layout):
    """Attention along the edges of a graph: scores ``[..., E, H]``, keys and values ``[..., N, H, D]``.

    Node i attends to the sources of its in-edges. Build one by :meth:`from_edge_index`; added self loops are the
    last ``num_targets`` edges, so the first ones stay aligned with the input.

    Args:
        sources: Source node of each edge.
        targets: Target node of each edge.
        num_input_edges: Edges given by the user, without added self loops.
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
    head_dim = -1

    def __post_init__(self) -> None:
        check_boolean_mask(self.mask)
        edges = self.sources.index.numel()
        if self.mask is not None and self.mask.shape != (edges, 1):
            raise ValueError(f"mask has shape {tuple(self.mask.shape)}, expected [{edges}, 1], an entry for each edge")

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, *, num_nodes: int | tuple[int, int], add_self_loops: bool = False
    ) -> EdgeList:
        """Build the layout from PyG's ``edge_index`` (sources in row 0, targets in row 1).

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
        if edge_index.layout != torch.strided:
            edge_index = edge_index.to_sparse_coo().coalesce().indices().flip(0)
        check_edge_index(edge_index, num_sources=num_sources, num_targets=num_targets)
        source, target = edge_index.long()
        if not add_self_loops:
            return cls(Segments(source, num_sources), Segments(target, num_targets), edge_index.size(1))
        if num_sources != num_targets:
            seen = f"{num_sources} sources and {num_targets} targets"
            raise ValueError(f"add_self_loops needs one set of nodes, got {seen}; pass add_self_loops=False")
        loops = torch.arange(num_targets, device=edge_index.device)
        replaced = source == target
        mask = None
        if torch.compiler.is_exporting() or replaced.any():
            mask = torch.cat([~replaced, torch.ones_like(loops, dtype=torch.bool)]).unsqueeze(-1)
        source, target = torch.cat([source, loops]), torch.cat([target, loops])
        return cls(Segments(source, num_sources), Segments(target, num_targets), edge_index.size(1), mask)

    def __repr__(self) -> str:
        mask = None if self.mask is None else tuple(self.mask.shape)
        return (
            f"EdgeList(edges={self.sources.index.numel()}, sources={self.sources.count}, "
            f"targets={self.targets.count}, has_self_loops={self.has_self_loops}, mask: {mask})"
        )

    def to(self, device: torch.device | str) -> EdgeList:
        """The layout on another device; itself when it is there already."""
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
            seen = f"scores of shape {tuple(scores.shape)} do not fit {edges.numel()} edges"
            raise ValueError(f"site '{site}': {seen}; expected [..., edges, heads]")
        check_device("edges", edges.device, scores, site=site)
        check_mask_fits(self.mask, scores, site=site)

    def heads_first(self, keys: Tensor) -> Tensor:
        return keys.transpose(-3, -2)

    def num_keys(self, scores: Tensor) -> int:  # noqa: ARG002
        return self.sources.count

    def num_rows(self, scores: Tensor) -> Tensor:
        return self._seeing * scores.size(-1)

    @cached_property
    def _seeing(self) -> Tensor:
        """Number of targets with an unmasked in-edge, on average over the columns of the mask."""
        kept = torch.ones_like(self.targets.index, dtype=torch.bool).unsqueeze(-1)
        if self.mask is not None:
            kept = kept & self.mask
        return (self.targets.sum(kept.float()) > 0).sum(-2).float().mean(-1)

    def spread_keys(self, values: Tensor) -> Tensor:
        return self.sources.spread(values.transpose(-1, -2))

    def log_softmax(self, scores: Tensor) -> Tensor:
        return segment_log_softmax(scores, self.targets, mask=self.mask)

    def softmax(self, scores: Tensor) -> Tensor:
        return segment_softmax(scores, self.targets, mask=self.mask)

    def log_softmax_over_queries(self, scores: Tensor) -> Tensor:
        return segment_log_softmax(scores, self.sources, mask=self.mask)

    def sum_over_queries(self, weights: Tensor) -> Tensor:
        return self.sources.sum(weights).transpose(-1, -2)

    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """``[..., E, H] x [..., N, H, D] -> [..., targets, H, D]``."""
        return segment_aggregate(weights, values, sources=self.sources, targets=self.targets)
