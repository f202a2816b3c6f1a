"""Sparse alignments: most keys have a probability of exactly zero, and sums run over the remaining keys alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from pyro_attention.alignments.categorical import CategoricalAlignment, or_first
from pyro_attention.layout import Dense, Layout
from pyro_attention.ops.sparsemax import sparsemax

__all__ = ["SparseAlignment"]


class SparseAlignment(CategoricalAlignment):
    r"""Sparse distribution of the key that a query attends to.

    .. math:: z \sim \mathrm{Categorical}(\mathrm{sparsemax}(\Phi))

    Enumerated, each query has its own few values: the keys with a positive probability. With k it is top-k sparsemax,
    another distribution than sparsemax where that has more than k keys; :attr:`is_cut` says where. The size of the
    scores matters: the larger their differences, the fewer keys.

    Args:
        scores: Scores of the keys, ``[..., 1, N]``: one head, queries in plates.
        layout: Dense with ``event_dim=2``; its mask takes keys out. Without any key the weights are zero.
        k: Most keys of a query, or None for as many as sparsemax has.
        validate_args: Check values.

    Raises:
        ValueError: As :class:`CategoricalAlignment` does.

    Example:
        >>> prior = SparseAlignment(torch.tensor([[[0.5, 0.25, -1.0]], [[3.0, 0.0, 0.0]]]))
        >>> prior.support_size.tolist(), prior.enumerate_support().tolist()
        ([2, 1], [[0, 0], [1, 1]])
        >>> prior.is_possible(prior.enumerate_support()).tolist()
        [[True, True], [True, False]]

    Source: Correia et al. (2020), Efficient Marginalization of Discrete and Structured Latent Variables via Sparsity,
    section 3.
    """

    is_sparse: ClassVar[bool] = True

    def __init__(
        self,
        scores: Tensor,
        *,
        k: int | None = None,
        layout: Layout | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self.k, self._given = k, scores
        super().__init__(scores, layout=layout, validate_args=validate_args)

    def _log_probabilities(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        probabilities = sparsemax(scores, mask=mask, k=self.k)
        positive = probabilities > 0
        support = or_first(positive)
        self._support, self._mask = support, mask
        return probabilities.where(positive, 1).log().masked_fill(~support, torch.finfo(scores.dtype).min / 8)

    def expand(self, batch_shape: Sequence[int], _instance: Self | None = None) -> Self:
        """Return a copy with a larger batch shape."""
        new = super().expand(batch_shape, _instance=_instance)
        new.k, new._support, new._given, new._mask = self.k, self._support, self._given, self._mask
        return new

    @property
    def support_size(self) -> Tensor:
        """Number of keys with a positive probability; it broadcasts to the batch shape."""
        return self._support.sum(-1)

    @property
    def is_cut(self) -> Tensor:
        """True where sparsemax has more than k keys; it broadcasts to the batch shape."""
        most = self._support.size(-1) if self.k is None else self.k
        return sparsemax(self._given.detach().squeeze(-2), mask=self._mask).count_nonzero(-1) > most

    def at_scores(self, scores: Tensor) -> SparseAlignment:
        if scores is self._given:
            return copy.copy(self)
        return SparseAlignment(scores, layout=self.possible_layout, k=self.k)

    @property
    def possible_layout(self) -> Layout:
        support = self._support.unsqueeze(-2)
        return Dense(support if self.layout.mask is None else support & self.layout.mask, event_dim=2)

    def enumerate_support(self, expand: bool = True) -> Tensor:  # noqa: ARG002
        """Return keys ``[K, ...]`` of each query, the most probable first; K is k, or the largest :attr:`support_size`.

        A query with fewer keys has impossible ones at the end. The keys differ between queries: always expanded.
        """
        # to ask for the largest size is to wait for the device
        count = int(self.support_size.max()) if self.k is None else min(self.k, self._num_events)
        return self.logits.topk(count, dim=-1).indices.movedim(-1, 0)

    def is_possible(self, value: Tensor) -> Tensor:
        """Return True where a value has a positive probability."""
        support = self._support.expand(*torch.broadcast_shapes(value.shape, self.batch_shape), -1)
        return support.gather(-1, value.expand(support.shape[:-1]).unsqueeze(-1)).squeeze(-1)
