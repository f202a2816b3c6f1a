r"""The hidden Markov model of word alignment: log evidence of a sentence pair, and posteriors of its links.

Target word j has one source word :math:`a_j`, or none (NULL). The alignment is a categorical latent site whose prior
depends on where the last linked word was linked to:

.. math::
    p(t, a \mid s) = \prod_j p(a_j \mid a_{j-1})\, p(t_j \mid s_{a_j}), \quad
    p(a_j = i \mid i') = (1 - p_0) \frac{c(i - i')}{\sum_{i''} c(i'' - i')}, \quad p(a_j = \text{NULL}) = p_0

The sum over all alignments is the log evidence, and its gradient with respect to the logarithm of a factor is the
expected number of times that the factor is used: the posterior of a link, of NULL, or of a jump. This is what
:func:`pyro_attention.alignments.exact.exact_alignments` does for attention. Here the gradient is written out, which is
the forward-backward algorithm and takes half of autograd's time.

Source: Vogel, Ney and Tillmann (1996), HMM-Based Word Alignment in Statistical Translation; the memory of NULL: Och and
Ney (2003), A Systematic Comparison of Various Statistical Alignment Models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from threading import local

import torch
from torch import Tensor

from pyro_attention.aligner._moves import NO_LINK, BandedMoves, DenseMoves

__all__ = ["Posterior", "markov_posterior", "uniform_posterior"]

_WIDE = 400  # source words beyond which sums over jumps are faster as convolutions
_memory = local()
_OFTEN = 4  # steps until probabilities are divided by their sum


def _scratch(like: Tensor, *shapes: Sequence[int]) -> list[Tensor]:
    """Memory that a thread uses again: to ask the system for it takes longer than what it is used for."""
    sizes = [prod(shape) for shape in shapes]
    held: Tensor = getattr(_memory, "held", torch.empty(0))
    if held.numel() < sum(sizes) or held.dtype != like.dtype:
        held = _memory.held = like.new_empty(sum(sizes))
    return [part.view(shape) for part, shape in zip(held[: sum(sizes)].split(sizes), shapes, strict=True)]


@dataclass(frozen=True)
class Posterior:
    """Posterior of the alignments of a batch of sentence pairs.

    Attributes:
        links: Probability of every link, ``[M, N, B]``.
        null: Probability that a target word has no link, ``[M, B]``.
        jumps: Expected number of jumps of each width, ``[2 K + 1]``, of the whole batch.
        log_evidence: Log probability of the target words, all alignments summed out, ``[B]``, in nats.
    """

    links: Tensor
    null: Tensor
    jumps: Tensor
    log_evidence: Tensor


def uniform_posterior(emission: Tensor, null: Tensor, jumps: Tensor, lengths: Tensor) -> Posterior:
    """The posterior where all source words are equally probable (IBM Model 1); jumps are not used."""
    unlinked = null * (NO_LINK / (1 - NO_LINK) * lengths)
    sums = emission.sum(1) + unlinked
    evidence = (sums * ((1 - NO_LINK) / lengths)).log().sum(0)
    return Posterior(emission / sums[:, None], unlinked / sums, torch.zeros_like(jumps), evidence)


def markov_posterior(
    emission: Tensor, null: Tensor, jumps: Tensor, lengths: Tensor, *, count_jumps: bool = True
) -> Posterior:
    r"""The posterior under the prior of jumps, by sums over all alignments.

    Args:
        emission: p(target word | source word), ``[M, N, B]``; 0 at padded places. Its memory becomes that of the links.
        null: p(target word | NULL), ``[M, B]``; ``1 / NO_LINK`` at padded places, which then change nothing.
        jumps: Weights c of the jumps, ``[2 K + 1]``, from -K to K; longer ones weigh what K does.
        lengths: Number of source words, ``[B]``.
        count_jumps: Otherwise they are left at 0, which takes a third of the time less.

    Example:
        >>> emission, null = torch.tensor([[[0.5], [0.25]], [[0.0], [0.5]]]), torch.full((2, 1), 0.1)
        >>> found = markov_posterior(emission, null, torch.ones(5), torch.tensor([2]))
        >>> found.links[..., 0], found.log_evidence.exp()
        (tensor([[0.6475, 0.3237],
                [0.0000, 0.9574]]), tensor([0.0817]))
    """
    num_target, num_source, count = emission.shape
    moves = (DenseMoves if num_source <= _WIDE else BandedMoves)(jumps, num_source)
    scale = moves.scale(lengths)
    stay = NO_LINK * null[:, None]
    says = emission.mul_(scale[1:])
    shrink = says.sum(1, keepdim=True).add_(stay)  # what a step is divided by, so that no product underflows
    says.div_(shrink)
    stay.div_(shrink)

    # forward: probabilities of the last linked place and the words so far, times the scale of the jump that follows
    # of every step where jumps are counted, otherwise of two, which take turns
    held = num_target + 1 if count_jumps else 2
    moved, last = _scratch(emission, emission.shape, (held, num_source + 1, count))
    last[0] = 0
    last[0, 0] = scale[0]
    before, linked = ([table[j % held] for j in range(num_target + 1)] for table in (last, last[:, 1:]))
    steps = list(zip(says.unbind(), stay.unbind(), moved.unbind(), strict=True))
    for j, (word, unlinked, arrived) in enumerate(steps):
        if j % _OFTEN == 0:
            total = before[j].sum(0, keepdim=True)
            shrink[j].mul_(total)
            word.div_(total)
            unlinked.div_(total)
        moves.follow(before[j], arrived)
        torch.mul(before[j], unlinked, out=before[j + 1])
        linked[j + 1].addcmul_(arrived, word)

    # backward: gradients of the log evidence with respect to these probabilities
    slope = scale.reciprocal()
    evidence = (before[-1] * slope).sum(0)
    slope.div_(evidence)
    to = slope[1:]
    for word, unlinked, _ in reversed(steps):
        word.mul_(to)
        moves.lead(word, slope.mul_(unlinked))
    jumped = moves.count(last[:-1], says) if count_jumps else torch.zeros_like(jumps)
    links = says.mul_(moved)
    return Posterior(
        links, (1 - links.sum(1)).clamp_min_(0), jumped, shrink.log().sum((0, 1)) + evidence.log()
    )  # fmt: skip
