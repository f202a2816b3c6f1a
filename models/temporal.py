"""Normalization of attention over the previous target words."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention import Dense


class TemporalNormalizer(nn.Module):
    r"""Normalizer over the previous queries and then over the keys, which reduces keys with much weight before.

    .. math:: A_{ij} = \frac{e^{s_{ij}}}{\sum_{i' < i} e^{s_{i'j}}}, \qquad
              W_{ij} = u\, \frac{A_{ij}}{\sum_{j'} A_{ij'}} + (1 - u)\, \mathrm{softmax}_j(s_{ij})

    :class:`~pyro_attention.DoublyNormalized` sums over all queries. A decoder cannot use the next ones, which contain
    the words to predict, so this normalizer sums over the previous queries only. The first query is normalized over the
    keys alone.

    Args:
        share: Initial mixing weight u, between 0 and 1, which is trained; u is 1 and not trained when omitted.

    Example:
        >>> normalizer, mask = TemporalNormalizer(), torch.ones(1, 2, dtype=torch.bool)
        >>> first, past = normalizer(torch.tensor([[3.0, 0.0]]), None, mask)
        >>> second, past = normalizer(torch.tensor([[3.0, 0.0]]), past, mask)  # prefers the same key again
        >>> first.softmax(-1), second.softmax(-1)
        (tensor([[0.9526, 0.0474]]), tensor([[0.5000, 0.5000]]))

    Source: Paulus et al. (2018), A Deep Reinforced Model for Abstractive Summarization, equations (2) to (4); Ding et
    al. (2020), Attention that does not Explain Away, equations (5) and (12), for double normalization.
    """

    def __init__(self, share: float | None = None) -> None:
        super().__init__()
        self.logit = None if share is None else nn.Parameter(torch.tensor(math.log(share / (1 - share))))

    @property
    def mixing_weight(self) -> float:
        """Share u of attention that is normalized over queries."""
        return 1.0 if self.logit is None else self.logit.detach().sigmoid().item()

    def forward(self, scores: Tensor, past: Tensor | None, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return scores whose softmax over the keys gives the weights of a query, and ``past`` for the next query.

        Args:
            scores: Scores of the query, ``[..., N]``.
            past: Log-sum-exp of the scores of the previous queries, ``[..., N]``; None at the first.
            mask: True at keys that may be attended to, ``[..., N]``.

        Returns:
            Both ``[..., N]``.
        """
        if past is None:
            return scores, scores
        temporal = scores - past
        if self.logit is not None:
            layout = Dense(mask.unsqueeze(-2))
            parts = [layout.log_softmax(part.unsqueeze(-2)).squeeze(-2) for part in (temporal, scores)]
            shares = nn.functional.logsigmoid(torch.stack([self.logit, -self.logit]))
            temporal = torch.logaddexp(parts[0] + shares[0], parts[1] + shares[1])
        return temporal, torch.logaddexp(past, scores)
