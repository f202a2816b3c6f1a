"""Sparse alignments: most keys have a probability of exactly zero, and sums run over the others alone."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from pyro_attention.alignments.categorical import AlignmentPrior, CategoricalAlignment, or_first
from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, PRIORS, Family
from pyro_attention.layout import Dense, Layout
from pyro_attention.ops.sparsemax import check_most_keys, sparsemax

__all__ = ["SparseAlignment", "SparseAlignmentPrior", "SparseCategorical"]


class SparseAlignment(CategoricalAlignment):
    r"""The key that a query attends to, :math:`z \sim \mathrm{Categorical}(\mathrm{sparsemax}(\Phi))`.

    Enumerated, each query has its own few values: the keys with a positive probability. With k it is top-k sparsemax,
    another distribution than sparsemax where that has more than k keys; :attr:`is_cut` says where.

    Arguments and errors are those of :class:`CategoricalAlignment`, and k, the most keys of a query, or None for as
    many as sparsemax has. The size of the scores matters: the larger their differences, the fewer keys.

    Example:
        >>> prior = SparseAlignment(torch.tensor([[[0.5, 0.25, -1.0]], [[3.0, 0.0, 0.0]]]))
        >>> prior.support_size.tolist(), prior.enumerate_support().tolist()
        ([2, 1], [[0, 0], [1, 1]])
        >>> prior.is_possible(prior.enumerate_support()).tolist()
        [[True, True], [True, False]]

    Source: Correia et al. (2020), Efficient Marginalization of Discrete and Structured Latent Variables via Sparsity,
    section 3.
    """

    def __init__(self, scores: Tensor, *, k: int | None = None, **options: Any) -> None:
        self.k, self._given = k, scores
        super().__init__(scores, **options)

    def _log_probabilities(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        probabilities = sparsemax(scores, mask=mask, k=self.k)
        positive = probabilities > 0
        support = or_first(positive)
        self._support, self._mask = support, mask
        return probabilities.where(positive, 1).log().masked_fill(~support, torch.finfo(scores.dtype).min / 8)

    def expand(self, batch_shape: Any, _instance: Any = None) -> SparseAlignment:
        new: Any = super().expand(batch_shape, _instance=_instance)
        new.k, new._support, new._given, new._mask = self.k, self._support, self._given, self._mask
        return new  # type: ignore[no-any-return]

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


@PRIORS.register("sparse_alignment")
class SparseAlignmentPrior(AlignmentPrior):
    r"""The attention scores are a sparse prior: :math:`z \sim \mathrm{Categorical}(\mathrm{sparsemax}(\Phi))`.

    With :class:`Marginal` and :class:`AlignmentELBO` the log evidence is summed over the keys of positive probability
    alone; it is exact, as the other terms are zero. A posterior has no other keys than this prior, so its KL is finite.

    Args:
        k: Most keys of a query (top-k sparsemax), at least 1; None for as many as sparsemax has. Where k cuts, keys are
            no longer part of the model at all; ``AlignmentELBO.cut_record`` says how often.

    Example:
        >>> call = AttentionCall(scores=torch.tensor([[[0.5, 0.0]]]), layout=Dense(event_dim=2))
        >>> SparseAlignmentPrior(k=1)(call).probs.tolist()
        [[1.0, 0.0]]

    Source: Correia et al. (2020), Efficient Marginalization of Discrete and Structured Latent Variables via Sparsity,
    section 3.
    """

    def __init__(self, *, k: int | None = None) -> None:
        super().__init__()
        check_most_keys(k)
        self.k = k

    def forward(self, call: AttentionCall) -> SparseAlignment:
        return SparseAlignment(call.scores, layout=call.layout, k=self.k)

    def soft_weights(self, scores: Tensor, layout: Layout) -> Tensor:
        return sparsemax(scores, mask=layout.mask, k=self.k).to(scores.dtype)

    def extra_repr(self) -> str:
        return f"k={self.k}"


@FAMILIES.register("sparse_categorical")
class SparseCategorical(Family):
    r"""Categorical posterior with few keys, summed out exactly: :math:`q = \mathrm{sparsemax}(\Phi)`.

    .. math:: \sum_{z:\, q(z) > 0} q(z)\, \bigl(\log f(y \mid z) + \log p(z) - \log q(z)\bigr)

    is the ELBO: the likelihood is wanted at the keys of q alone. As in the paper the prior may be dense, as that of
    :class:`AlignmentPrior` is; then every such bound is finite, and tight only where the exact posterior is sparse
    too. Under a sparse prior q has no other keys than the prior.

    By itself q has the prior's scores; with :class:`Amortized` they come from an inference network.

    Args:
        k: Most keys of a query (top-k sparsemax), at least 1; None for as many as sparsemax has. The ELBO stays a bound
            where k cuts; ``AlignmentELBO.cut_record`` says how often it does.

    Example:
        >>> call = AttentionCall(scores=torch.zeros(1, 1, 4), layout=Dense(event_dim=2))
        >>> SparseCategorical(k=2).posterior(call, AlignmentPrior()(call)).support_size
        tensor([2])

    Source: Correia et al. (2020), Efficient Marginalization of Discrete and Structured Latent Variables via Sparsity,
    section 3.
    """

    kind = CategoricalAlignment.kind

    def __init__(self, *, k: int | None = None) -> None:
        super().__init__()
        check_most_keys(k)
        self.k = k
        self.infer = {"enumerate": "parallel"}  # type: ignore[misc]

    def posterior(self, call: AttentionCall, prior: CategoricalAlignment) -> SparseAlignment:
        return SparseAlignment(call.scores, layout=prior.possible_layout, k=self.k)

    def extra_repr(self) -> str:
        return f"k={self.k}"
