"""Layouts of attention weights: a dense query x key grid, or another, such as the edges of a graph.

Shapes: B batch, H heads, M queries, N keys or nodes, D width, E edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention._checks import check_boolean_mask, check_mask_fits

__all__ = ["Dense", "Layout"]


class Layout(ABC):
    """Mask and structure of attention weights, all that distributions know of the shape of the data.

    Attributes:
        event_dim: Number of rightmost dimensions of the scores that belong to one attention site.
        mask: True where a query may attend; boolean, broadcastable to the scores; None when nothing is masked.
        counted: True for the queries whose weights count in densities, entropies and KL; None when all do.
    """

    event_dim: int
    mask: Tensor | None
    counted: Tensor | None = None

    @property
    @abstractmethod
    def head_dim(self) -> int:
        """Dimension of the heads in the scores, negative."""

    @property
    def counted_entries(self) -> Tensor | None:
        """Mask of the entries that count, allowed ones of queries that count; None when all do."""
        if self.mask is None or self.counted is None:
            return self.counted if self.mask is None else self.mask
        return self.mask & self.counted

    @abstractmethod
    def check(self, scores: Tensor, *, site: str) -> None:
        """Raise ValueError, naming the site, when the scores do not fit the layout."""

    def check_values(self, values: Tensor, scores: Tensor, *, site: str) -> None:  # noqa: B027
        """Raise ValueError, naming the site, when the values do not fit the scores; by default nothing is checked."""

    @abstractmethod
    def heads_first(self, keys: Tensor) -> Tensor:
        """Return keys of this layout as ``[..., H, N, D]``."""

    @abstractmethod
    def spread_keys(self, values: Tensor) -> Tensor:
        """Return per-key values ``[..., H, N]`` in a shape that broadcasts against the scores."""

    @abstractmethod
    def spread_queries(self, values: Tensor) -> Tensor:
        """Return per-query values ``[..., H, M]`` in a shape that broadcasts against the scores.

        M is missing where queries lie in plates.
        """

    @abstractmethod
    def log_softmax(self, scores: Tensor, *, over_queries: bool = False) -> Tensor:
        """Return the log softmax over allowed keys of a query, or allowed queries of a key; 0 where masked."""

    @abstractmethod
    def softmax(self, scores: Tensor) -> Tensor:
        """Normalize scores over the keys that a query may attend to; masked entries and empty rows become exactly 0."""

    @abstractmethod
    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the weighted sum of the values for every query."""

    def spread_heads(self, values: Tensor) -> Tensor:
        """Return per-head values ``[H]`` in a shape that broadcasts against the scores."""
        return values.reshape(-1, *[1] * (-1 - self.head_dim))


@dataclass(frozen=True, eq=False)
class Dense(Layout):
    """Attention of every query to every key: scores ``[..., H, M, N]``, keys and values ``[..., H, N, D]``.

    Args:
        mask: Boolean, True = may attend, broadcastable to the scores, for example ``[B, 1, 1, N]`` for padding.
        event_dim: 3 when one site holds all queries (self-attention); 2 when queries lie in a plate, as where each
            target position has its own observation: scores ``[..., H, N]``.
        causal: Whether queries may not depend on later ones; normalizers over queries then refuse.
        counted: Boolean ``[..., queries, 1]``: True for queries whose weights count in the KL; padded ones do not.

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
    causal: bool = False
    counted: Tensor | None = None

    def __post_init__(self) -> None:
        check_boolean_mask(self.mask)
        check_boolean_mask(self.counted)
        if self.event_dim not in (2, 3):
            raise ValueError(f"event_dim is {self.event_dim}, expected 3 (heads, queries, keys) or 2 (heads, keys)")
        if self.counted is not None and (self.event_dim == 2 or self.counted.dim() < 2 or self.counted.size(-1) != 1):
            problem = f"counted has shape {tuple(self.counted.shape)}, event_dim is {self.event_dim}"
            raise ValueError(f"{problem}, expected [..., queries, 1] and 3")

    @property
    def head_dim(self) -> int:
        return -self.event_dim

    def check(self, scores: Tensor, *, site: str) -> None:
        if scores.dim() < self.event_dim:
            expected = "[..., heads, queries, keys]" if self.event_dim == 3 else "[..., heads, keys]"
            raise ValueError(f"site '{site}': scores have shape {tuple(scores.shape)}, expected {expected}")
        for mask in (self.mask, self.counted):
            check_mask_fits(mask, scores, site=site)

    def check_values(self, values: Tensor, scores: Tensor, *, site: str) -> None:
        expected = "[..., heads, keys, width]"
        shapes = f"values of shape {tuple(values.shape)} do not fit scores of shape {tuple(scores.shape)}"
        if values.dim() < 2 or values.size(-2) != scores.size(-1):
            raise ValueError(f"site '{site}': {shapes}; expected {expected}, with {scores.size(-1)} keys")
        full = scores.dim() - self.event_dim + 3  # dimensions of values that have all of the scores'
        heads = scores.size(self.head_dim)
        if 3 <= values.dim() < full and values.size(-3) not in (1, heads):
            raise ValueError(
                f"site '{site}': {shapes}; expected {expected} with heads = {heads} or 1: without that dimension all "
                f"items would meet each other's values; add it (values.unsqueeze(-3))"
            )

    def heads_first(self, keys: Tensor) -> Tensor:
        return keys

    def spread_keys(self, values: Tensor) -> Tensor:
        return values.unsqueeze(-2) if self.event_dim == 3 else values

    def spread_queries(self, values: Tensor) -> Tensor:
        return values.unsqueeze(-1)

    def _fill(self, scores: Tensor) -> Tensor:
        least = torch.finfo(scores.dtype).min / 2  # added, as filling takes much longer on a CPU
        return scores if self.mask is None else scores + scores.new_zeros(()).where(self.mask, least)

    def _clear(self, values: Tensor) -> Tensor:
        return values if self.mask is None else values * self.mask

    def log_softmax(self, scores: Tensor, *, over_queries: bool = False) -> Tensor:
        if over_queries and self.event_dim == 2:
            raise ValueError("event_dim is 2, so nothing runs over queries; expected Dense(event_dim=3), or Softmax()")
        return self._clear(self._fill(scores).log_softmax(-2 if over_queries else -1))

    def softmax(self, scores: Tensor) -> Tensor:
        return self._clear(self._fill(scores).softmax(-1))

    def aggregate(self, weights: Tensor, values: Tensor) -> Tensor:
        """Compute ``[..., H, M, N] x [..., H, N, D] -> [..., H, M, D]``.

        M is missing when queries lie in a plate.
        """
        rows = weights if self.event_dim == 3 else weights.unsqueeze(-2)
        # where there are more draws of weights than of values, `@` would copy the values
        context = rows @ values if rows.dim() <= values.dim() else torch.einsum("...mn,...nd->...md", rows, values)
        return context if self.event_dim == 3 else context.squeeze(-2)
