"""Priors of alignments: the attention scores are the log probabilities of the keys, dense or sparse."""

from __future__ import annotations

from torch import Tensor

from pyro_attention.alignments.base import AlignmentDistribution
from pyro_attention.alignments.categorical import CategoricalAlignment
from pyro_attention.alignments.edges import EdgeAlignment
from pyro_attention.alignments.sparse import SparseAlignment
from pyro_attention.attention_call import AttentionCall
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.base import PRIORS, Prior
from pyro_attention.layout import Layout
from pyro_attention.ops.sparsemax import check_most_keys, sparsemax

__all__ = ["AlignmentPrior", "SparseAlignmentPrior"]


@PRIORS.register("alignment")
class AlignmentPrior(Prior):
    r"""Prior of an alignment, given by the attention scores.

    .. math:: z \sim \mathrm{Categorical}(\mathrm{softmax}(\Phi))

    On a graph the distribution is an :class:`EdgeAlignment`: which in-edge a node attends to.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
        >>> AlignmentPrior()(AttentionCall(scores=torch.zeros(2, 1, 3), layout=Dense(event_dim=2))).probs.shape
        torch.Size([2, 3])

    Source: Deng et al. (2018), Latent Alignment and Variational Attention, section 2.
    """

    kind = AlignmentDistribution.kind

    def forward(self, call: AttentionCall) -> AlignmentDistribution:
        """Return the distribution over the keys, or over the edges of a graph."""
        if isinstance(call.layout, EdgeList):
            return EdgeAlignment(call.scores, layout=call.layout)
        return CategoricalAlignment(call.scores, layout=call.layout)


@PRIORS.register("sparse_alignment")
class SparseAlignmentPrior(AlignmentPrior):
    r"""Sparse prior of an alignment, given by the attention scores.

    .. math:: z \sim \mathrm{Categorical}(\mathrm{sparsemax}(\Phi))

    With :class:`Marginal` and :class:`AlignmentELBO` the log evidence is summed over the keys of positive probability
    alone; it is exact, as the other terms are zero. A posterior has no other keys than this prior, so its KL is finite.

    Args:
        k: Most keys of a query (top-k sparsemax), at least 1; None for as many as sparsemax has. Where k cuts, keys are
            no longer part of the model at all; ``AlignmentELBO.cut_record`` says how often.

    Raises:
        ValueError: k is below 1.

    Example:
        >>> import torch
        >>> from pyro_attention import Dense
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
        """Return the distribution over the keys that sparsemax leaves."""
        return SparseAlignment(call.scores, layout=call.layout, k=self.k)

    def soft_weights(self, scores: Tensor, layout: Layout) -> Tensor:
        return sparsemax(scores, mask=layout.mask, k=self.k).to(scores.dtype)

    def extra_repr(self) -> str:
        return f"k={self.k}"
