"""Doubly normalised attention of a decoder, which has no later queries to normalise over."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention import Dense

__all__ = ["TemporalNormalizer"]


class TemporalNormalizer(nn.Module):
    r"""Normalise over the queries before, then over the keys: what was much looked at is looked at less.

    .. math:: A_{ij} = \frac{e^{s_{ij}}}{\sum_{i' < i} e^{s_{i'j}}}, \qquad
              W_{ij} = u\, \frac{A_{ij}}{\sum_{j'} A_{ij'}} + (1 - u)\, \mathrm{softmax}_j(s_{ij})

    :class:`~pyro_attention.DoublyNormalized` sums over all queries, the later ones too, which would leak the words to
    come. This is the part of it that a decoder can have. The first query has none before it, and is normalised over the
    keys alone.

    Args:
        share: Mixing weight u that training begins with, between 0 and 1; without it u is 1 and not trained.

    Raises:
        ValueError: ``share`` is not between 0 and 1.

    Example:
        >>> normalizer, mask = TemporalNormalizer(), torch.ones(1, 2, dtype=torch.bool)
        >>> first, seen = normalizer(torch.tensor([[3.0, 0.0]]), None, mask)
        >>> second, seen = normalizer(torch.tensor([[3.0, 0.0]]), seen, mask)  # prefers the same key again
        >>> first.softmax(-1), second.softmax(-1)
        (tensor([[0.9526, 0.0474]]), tensor([[0.5000, 0.5000]]))

    Source: Paulus et al. (2018), A Deep Reinforced Model for Abstractive Summarization, equations (2) to (4); Ding et
    al. (2020), Attention that does not Explain Away, equations (5) and (12), for what it takes the place of.
    """

    def __init__(self, share: float | None = None) -> None:
        super().__init__()
        if share is not None and not 0 < share < 1:
            raise ValueError(f"share is {share}, expected a number between 0 and 1, both excluded, or None")
        self.logit = None if share is None else nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    @property
    def mixing_weight(self) -> float:
        """Share u of attention that is normalised over queries."""
        return 1.0 if self.logit is None else self.logit.detach().sigmoid().item()

    def forward(self, scores: Tensor, seen: Tensor | None, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scores whose softmax over the keys are the weights of a query.

        Args:
            scores: Scores of the query, ``[..., N]``.
            seen: Log-sum-exp of the scores of the queries before, ``[..., N]``; None at the first.
            mask: True at what may be attended to, ``[..., N]``.

        Returns:
            Scores of the weights, and ``seen`` for the next query, both ``[..., N]``.
        """
        if seen is None:
            return scores, scores
        past = scores - seen
        if self.logit is not None:
            layout = Dense(mask.unsqueeze(-2))
            parts = [layout.log_softmax(part.unsqueeze(-2)).squeeze(-2) for part in (past, scores)]
            shares = nn.functional.logsigmoid(torch.stack([self.logit, -self.logit]))
            past = torch.logaddexp(parts[0] + shares[0], parts[1] + shares[1])
        return past, torch.logaddexp(seen, scores)

    def extra_repr(self) -> str:
        return f"mixing_weight={self.mixing_weight:.3g}"
