"""What every distribution of an attention site has, and what the attention layer proposes to it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Self

import torch
from torch import Tensor

from pyro_attention.layout import Layout
from pyro_attention.normalizers import Normalizer, Softmax

__all__ = ["AttentionDistribution", "Proposal"]


@dataclass(frozen=True, eq=False)
class Proposal:
    r"""What an attention layer proposes to its site: the scores :math:`\Phi`, from which a posterior family starts.

    Every posterior family has ``E[S] = exp(scores)``. Change it by :func:`dataclasses.replace`: other scores enter in
    the same way as those of the layer.

    Args:
        scores: Attention scores of the shape of the weights. Kept as they enter the site: normalised if
            ``normalize``, and zero at masked entries.
        layout: Where the weights live.
        normalizer: From log weights to weights.
        normalize: Whether scores enter normalised as the weights are, for a bounded KL; the weights' distribution is
            the same, except under a prior whose scores have a size that matters.

    Example:
        >>> from dataclasses import replace
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


class AttentionDistribution:
    """The base of all distributions of an attention site; each is also a Pyro distribution.

    Attributes:
        kind: Which posterior families fit a prior: those of the same kind.
        layout: Where the weights live.
    """

    kind: ClassVar[str]
    layout: Layout
    batch_shape: torch.Size
    event_shape: torch.Size
    _proposal: Proposal | None = None

    @property
    def proposal(self) -> Proposal:
        """What the attention layer proposes to the site, from which a posterior family starts."""
        if self._proposal is None:
            raise ValueError(
                f"{type(self).__name__} carries no scores; sample it through LatentAttention, or give it some by "
                f".with_proposal(Proposal(scores, layout))"
            )
        return self._proposal

    def with_proposal(self, proposal: Proposal) -> Self:
        """Copy, for the prior of a site, with what the attention layer proposes."""
        new = copy.copy(self)
        new._proposal = proposal
        return new

    def weights(self, value: Tensor) -> Tensor:
        """Attention weights of a value of the site; exactly zero at masked entries."""
        raise NotImplementedError

    @property
    def mean_value(self) -> Tensor:
        """The value of the site without any noise."""
        raise NotImplementedError

    @property
    def deterministic_value(self) -> Tensor:
        """For a prior, the value that :class:`Soft` gives to its site: ordinary attention with the proposed scores."""
        return self.mean_value

    @property
    def mean_weights(self) -> Tensor:
        """Weights of the mean value: ``E[W]`` where that has a closed form, else the weights of ``E[S]``."""
        return self.weights(self.mean_value)

    @property
    def full_shape(self) -> torch.Size:
        """Shape of the weights."""
        return self.batch_shape + self.event_shape
