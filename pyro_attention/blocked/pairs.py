"""Pairs of queries and keys whose scores are computed where they are needed and never held together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.blocked.ops.blocked_attention import blocked_attention
from pyro_attention.layout import Dense
from pyro_attention.normalizers import Softmax

__all__ = ["Pairs"]

_WINDOW_ENTRIES = 2**20


@dataclass(frozen=True, eq=False)
class Pairs:
    r"""What determines the scores :math:`s_{ij} = q_i \cdot k_j` of an attention call, and who may attend to whom.

    Args:
        queries: ``[..., H, M, D]``, already scaled.
        keys: ``[..., H, N, D]``.
        key_mask: Boolean ``[..., N]``, True = may be attended to.
        query_mask: Boolean ``[..., M]``, True = may attend.
        causal: Query i sees the keys 0 .. i alone.
        normalize: Whether scores enter the site as log-softmax.

    Example:
        >>> pairs = Pairs(torch.ones(1, 3, 4), torch.ones(1, 5, 4), causal=True)
        >>> pairs.shape, pairs.counts().tolist()
        (torch.Size([1, 3, 5]), [[[3.0, 2.0, 1.0, 0.0, 0.0]]])
    """

    queries: Tensor
    keys: Tensor
    key_mask: Tensor | None = None
    query_mask: Tensor | None = None
    causal: bool = False
    normalize: bool = True

    @property
    def shape(self) -> torch.Size:
        """Shape of the scores, ``[..., H, M, N]``."""
        batch = torch.broadcast_shapes(self.queries.shape[:-2], self.keys.shape[:-2])
        return torch.Size((*batch, self.queries.size(-2), self.keys.size(-2)))

    def detach(self) -> Pairs:
        """The same without gradients."""
        return replace(self, queries=self.queries.detach(), keys=self.keys.detach())

    def windows(self) -> Iterator[slice]:
        """Blocks of queries, each with about as many scores as fit in a few megabytes."""
        rows = max(1, _WINDOW_ENTRIES * self.shape[-2] // max(1, self.shape.numel()))
        for start in range(0, self.shape[-2], rows):
            yield slice(start, min(start + rows, self.shape[-2]))

    def layout(self, rows: slice | None = None) -> Dense:
        """Layout of some queries; of the key mask alone, the same for all of them, when omitted."""
        mask = None if self.key_mask is None else self.key_mask[..., None, None, :]
        if rows is None:
            return Dense(mask)
        start, stop, _ = rows.indices(self.shape[-2])
        masks = [] if mask is None else [mask]
        if self.query_mask is not None:
            masks.append(self.query_mask[..., None, start:stop, None])
        if self.causal:
            i, j = torch.arange(start, stop), torch.arange(self.shape[-1])
            masks.append((i[:, None] >= j).to(self.queries.device))
        if not masks:
            return Dense()
        return Dense(torch.stack(torch.broadcast_tensors(*masks)).all(0))

    def scores(self, rows: slice) -> Tensor:
        """Scores of some queries as they enter the site, ``[..., H, R, N]``; masked ones are zero."""
        layout = self.layout(rows)
        with torch.autocast(self.queries.device.type, enabled=False):
            scores = as_float(self.queries[..., rows, :]) @ as_float(self.keys).transpose(-1, -2)
        if self.normalize:
            return Softmax().normalize_scores(scores, layout)
        return scores if layout.mask is None else scores.masked_fill(~layout.mask, 0)

    def log_sums(self) -> Tensor:
        """Log-sum-exp of the scores of each query, ``[..., H, M]``; zero for one that sees no key."""
        mask = None if self.key_mask is None else self.key_mask[..., None, :]
        values = self.keys[..., :1]  # the context is not wanted here
        return blocked_attention(self.queries, self.keys, values, key_mask=mask, causal=self.causal)[1]

    # Sums over pairs that need no scores.

    def sum_over_queries(self, x: Tensor) -> Tensor:
        """Sum of ``[..., M, F]`` over the queries that see each key: ``[..., N, F]``; zero at masked keys."""
        if self.query_mask is not None:
            x = x.where(self.query_mask[..., None, :, None], 0)
        keys = self.shape[-1]
        if self.causal:
            later = x.flip(-2).cumsum(-2).flip(-2)[..., :keys, :]
            total = torch.nn.functional.pad(later, (0, 0, 0, keys - later.size(-2)))
        else:
            total = x.sum(-2, keepdim=True).expand(*x.shape[:-2], keys, x.size(-1))
        return total if self.key_mask is None else total.where(self.key_mask[..., None, :, None], 0)

    def counts(self) -> Tensor:
        """Number of queries that see each key, ``[..., 1, 1, N]``."""
        return self.sum_over_queries(as_float(self.queries).new_ones(1, self.shape[-2], 1)).transpose(-1, -2)

    def seeing(self) -> Tensor:
        """Which queries see any key: boolean, broadcastable to ``[..., H, M]``."""
        queries, keys = self.shape[-2:]
        seen = self.queries.new_ones(1, keys, dtype=torch.bool) if self.key_mask is None else self.key_mask
        if self.causal:
            last = torch.arange(queries, device=seen.device).clamp(max=keys - 1)
            seen = seen.cummax(-1).values[..., last]
        else:
            seen = seen.any(-1, keepdim=True)
        seen = seen.unsqueeze(-2) if self.key_mask is not None else seen
        return seen if self.query_mask is None else seen & self.query_mask.unsqueeze(-2)
