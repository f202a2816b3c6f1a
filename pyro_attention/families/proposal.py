"""What an attention layer proposes to its site."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from pyro_attention.layout import Layout
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["Proposal"]


@dataclass(frozen=True, eq=False)
class Proposal:
    r"""What an attention layer proposes to its site: the scores :math:`\Phi`, from which a posterior family starts.

    A posterior family of positive weights has ``E[S] = exp(scores)``. Change a proposal by :func:`dataclasses.replace`:
    other scores enter in the same way as those of the layer.

    Args:
        scores: Attention scores of the shape of the weights. Kept as they enter the site: normalised if
            ``normalize``, and zero at masked entries.
        layout: Where the weights live.
        normalizer: From log weights to weights.
        normalize: Whether scores enter normalised as the weights are, for a bounded KL; the weights' distribution is
            the same, except under a prior whose scores have a size that matters.

    Example:
        >>> from dataclasses import replace
        >>> import torch
        >>> from pyro_attention import Dense
        >>> proposal = Proposal(torch.tensor([[[3.0, 3.0]]]), Dense())
        >>> replace(proposal, scores=torch.tensor([[[5.0, 5.0]]])).scores.exp().tolist()
        [[[0.5, 0.5]]]
    """

    scores: Tensor
    layout: Layout
    normalizer: Normalizer = field(default_factory=Softmax)
    normalize: bool = True

    def __post_init__(self) -> None:
        scores = self.scores
        if self.normalize:
            scores = self.normalizer.normalize_scores(scores, self.layout)
        elif self.layout.mask is not None:
            scores = scores.masked_fill(~self.layout.mask, 0)
        object.__setattr__(self, "scores", scores)

    @cached_property
    def expected_total(self) -> Tensor | float | None:
        """Sum of ``E[S]`` over the unmasked entries of the event where it is known, as for normalised scores."""
        return self.normalizer.total(self.scores, self.layout) if self.normalize else None
