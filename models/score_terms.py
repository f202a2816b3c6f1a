"""What a decoder may add to the scores of its attention: a diagonal, jumps, NULL, and the words before."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention import Dense

PROBABILITY = 0.08  # of NULL in fast_align


class DiagonalBias(nn.Module):
    r"""Scores that fall with the distance from the diagonal, :math:`-\lambda\, |i / N - j / M|`.

    Added to the scores of an attention it leaves them as contextual as they were; alone it is the alignment prior of
    fast_align, without its probability of no link. The places i and j are those of the middles of the words. The length
    M of a sentence that is being written is not known, and the model of the words must not know it: it is taken to be
    :math:`r N`, and words beyond that are at the end. Both :math:`\lambda` and r are trained.

    Args:
        strength: :math:`\lambda` that training begins with, positive; fast_align begins with 4.
        ratio: r that training begins with, positive.

    Example:
        >>> bias = DiagonalBias(strength=4.0)
        >>> bias(torch.ones(1, 4, dtype=torch.bool), 0).detach()
        tensor([[-0., -1., -2., -3.]])

    Source: Dyer, Chahuneau and Smith (2013), A Simple, Fast, and Effective Reparameterization of IBM Model 2.
    """

    def __init__(self, strength: float = 4.0, ratio: float = 1.0) -> None:
        super().__init__()
        self.log_strength = nn.Parameter(torch.tensor(math.log(strength)))
        self.log_ratio = nn.Parameter(torch.tensor(math.log(ratio)))

    def forward(self, mask: Tensor, place: int) -> Tensor:
        """What to add to the scores of one target word.

        Args:
            mask: True at source words, which come before the padding, ``[..., N]``.
            place: Place of the target word, from 0.

        Returns:
            ``[..., N]``, at most 0.
        """
        counts = mask.sum(-1, keepdim=True).clamp_min(1)
        source = (torch.arange(mask.size(-1), device=mask.device) + 0.5) / counts
        target = ((place + 0.5) / (counts * self.log_ratio.exp())).clamp_max(1.0)
        return -self.log_strength.exp() * (source - target).abs()


class Jumps(nn.Module):
    r"""Prior of the next alignment from a belief about the last one, as in the hidden Markov model of alignments.

    .. math:: p(z_j = i \mid y_{<j}) = \sum_{i'} p(i \mid i')\, p(z_{j-1} = i' \mid y_{<j}), \qquad
              p(i \mid i') \propto e^{s_{i - i'} + \Phi_{ij}}

    Scores :math:`\Phi`, such as a diagonal, may speak for some words more than for others.
    With the posterior of the last alignment as the belief, which Bayes' rule gives without any guess, the log evidence
    of a sentence is exactly that of the hidden Markov model. A belief has one more place than there are source words,
    in front: that the words have not begun yet. A word that is aligned to NULL does not move.

    Args:
        most: Jumps :math:`s` farther than this, to the left or to the right, are as probable as this one.

    Example:
        >>> jumps = Jumps(most=2)
        >>> real = torch.ones(1, 4, dtype=torch.bool)
        >>> jumps(jumps.start(real), torch.zeros(1, 4), real).exp().detach()
        tensor([[0.2500, 0.2500, 0.2500, 0.2500]])

    Source: Vogel, Ney and Tillmann (1996), HMM-Based Word Alignment in Statistical Translation; Och and Ney (2003), A
    Systematic Comparison of Various Statistical Alignment Models, section 2.1.2.
    """

    def __init__(self, most: int = 8) -> None:
        super().__init__()
        self.most = most
        self.log_weight = nn.Parameter(torch.zeros(2 * most + 1))

    def start(self, mask: Tensor) -> Tensor:
        """Belief ``[B, 1 + N]`` before the first word, of source words that the mask ``[B, N]`` marks."""
        before = torch.ones(len(mask), 1, dtype=self.log_weight.dtype, device=mask.device)
        return nn.functional.pad(before, (0, mask.size(1)))

    def after(self, belief: Tensor, posterior: Tensor) -> Tensor:
        """Belief after a word.

        Args:
            belief: That before the word, ``[B, 1 + N]``.
            posterior: Probabilities of the word's alignment, ``[B, N]``, or ``[B, 1 + N]`` with NULL in front.
        """
        if posterior.size(-1) < belief.size(-1):
            return nn.functional.pad(posterior, (1, 0))
        return nn.functional.pad(posterior[:, 1:], (1, 0)) + posterior[:, :1] * belief

    def forward(self, belief: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """Log probabilities of the next alignment.

        Args:
            belief: That of the last one, ``[B, 1 + N]``.
            scores: What else speaks for a source word, ``[B, N]``.
            mask: True at source words, ``[B, N]``.

        Returns:
            ``[B, N]``; what stands at the padding means nothing.
        """
        with torch.autocast(mask.device.type, enabled=False):
            to, past = (torch.arange(start, mask.size(1), device=mask.device) for start in (0, -1))
            jumps = (to - past.unsqueeze(1)).clamp(-self.most, self.most)
            dtype = torch.promote_types(belief.dtype, self.log_weight.dtype)
            weights = self.log_weight.to(dtype).exp()[jumps + self.most]  # [1 + N, N]
            own = scores.to(dtype).masked_fill(~mask, -torch.inf).softmax(-1)
            tiny = torch.finfo(dtype).tiny
            totals = (own @ weights.mT).clamp_min(tiny)
            return ((belief / totals) @ weights * own).clamp_min(tiny).log()


class NullWord(nn.Module):
    r"""One more thing to attend to, a trained vector before all source words, for target words that translate none.

    Its score is that of any other key, or such that its probability is known,

    .. math:: \Phi_0 = \log \sum_{i > 0} e^{\Phi_i} + \log \frac{p_0}{1 - p_0}.

    Args:
        width: Width of what is attended to.
        probability: :math:`p_0` under the prior, between 0 and 1; that of its score when None.

    Example:
        >>> null = NullWord(2, probability=0.2)
        >>> memory, mask = null.prepend(torch.ones(1, 3, 2), torch.ones(1, 3, dtype=torch.bool))
        >>> memory.shape, null(torch.zeros(1, 4), mask).softmax(-1)
        (torch.Size([1, 4, 2]), tensor([[0.2000, 0.2667, 0.2667, 0.2667]]))

    Source: Brown et al. (1993), The Mathematics of Statistical Machine Translation, section 4.2; Dyer, Chahuneau and
    Smith (2013), A Simple, Fast, and Effective Reparameterization of IBM Model 2, section 2, for its probability.
    """

    def __init__(self, width: int, probability: float | None = None) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))
        self.probability = probability

    def prepend(self, memory: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What is attended to, ``[B, N, width]``, and its mask ``[B, N]``, with NULL in front of both."""
        vector = self.vector.to(memory.dtype).expand(len(memory), 1, -1)
        return torch.cat([vector, memory], 1), nn.functional.pad(mask, (1, 0), value=True)

    def forward(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Scores ``[..., 1 + N]`` of NULL and the source words, where the mask ``[..., 1 + N]`` is that of both."""
        if self.probability is None:
            return scores
        words = scores[..., 1:].masked_fill(~mask[..., 1:], -math.inf)
        odds = math.log(self.probability / (1 - self.probability))
        return torch.cat([words.logsumexp(-1, keepdim=True) + odds, scores[..., 1:]], -1)


class TemporalNormalizer(nn.Module):
    r"""Normalise over the queries before, then over the keys: what was much looked at is looked at less.

    .. math:: A_{ij} = \frac{e^{s_{ij}}}{\sum_{i' < i} e^{s_{i'j}}}, \qquad
              W_{ij} = u\, \frac{A_{ij}}{\sum_{j'} A_{ij'}} + (1 - u)\, \mathrm{softmax}_j(s_{ij})

    :class:`~pyro_attention.DoublyNormalized` sums over all queries, the later ones too, which would leak the words to
    come. This is the part of it that a decoder can have. The first query has none before it, and is normalised over the
    keys alone.

    Args:
        share: Mixing weight u that training begins with, between 0 and 1; without it u is 1 and not trained.

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
