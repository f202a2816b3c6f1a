r"""The hidden Markov model of word alignment: log evidence of a sentence pair, and posteriors of its links.

Target word j has one source word :math:`a_j`, or none (NULL). The alignment is a categorical latent site whose prior
depends on where the last linked word was linked to:

.. math::
    p(t, a \mid s) = \prod_j p(a_j \mid a_{j-1})\, p(t_j \mid s_{a_j}), \quad
    p(a_j = i \mid i') = (1 - p_0) \frac{c(i - i')}{\sum_{i''} c(i'' - i')}, \quad p(a_j = \text{NULL}) = p_0

The sum over all alignments is the log evidence, and its gradient with respect to the logarithm of a factor is the
expected number of times that the factor is used: the posterior of a link, of NULL, or of a jump. This is what
:func:`pyro_attention.posterior.exact.exact_alignments` does for attention. Here the gradient is written out, which is
the forward-backward algorithm and takes half of autograd's time.

Source: Vogel, Ney and Tillmann (1996), HMM-Based Word Alignment in Statistical Translation; the memory of NULL: Och and
Ney (2003), A Systematic Comparison of Various Statistical Alignment Models.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NO_LINK", "Posterior", "markov_posterior", "uniform_posterior"]

NO_LINK = 0.1  # prior probability of NULL


@dataclass(frozen=True)
class Posterior:
    """What the words of a batch of sentence pairs say of their alignments.

    Attributes:
        links: Probability of every link, ``[M, B, N]``.
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
    links, unlinked = emission * ((1 - NO_LINK) / lengths[:, None]), NO_LINK * null
    sums = links.sum(-1) + unlinked
    return Posterior(links / sums[..., None], unlinked / sums, torch.zeros_like(jumps), sums.log().sum(0))


def markov_posterior(emission: Tensor, null: Tensor, jumps: Tensor, lengths: Tensor) -> Posterior:
    r"""The posterior under the prior of jumps, by sums over all alignments.

    Args:
        emission: p(target word | source word), ``[M, B, N]``; 0 at padded places.
        null: p(target word | NULL), ``[M, B]``; ``1 / NO_LINK`` at padded places, which then change nothing.
        jumps: Weights c of the jumps, ``[2 K + 1]``, from -K to K; longer ones weigh what K does.
        lengths: Number of source words, ``[B]``.

    Example:
        >>> emission, null = torch.tensor([[[0.5, 0.25]], [[0.0, 0.5]]]), torch.full((2, 1), 0.1)
        >>> found = markov_posterior(emission, null, torch.ones(5), torch.tensor([2]))
        >>> found.links[:, 0], found.log_evidence.exp()
        (tensor([[0.6475, 0.3237],
                [0.0000, 0.9574]]), tensor([0.0817]))
    """
    num_target, count, num_source = emission.shape
    places = torch.arange(num_source, device=emission.device)
    reach = len(jumps) // 2
    # from the place of the last linked word, of which there are N and before them the start
    width = (places - torch.arange(-1, num_source, device=emission.device)[:, None]).clamp(-reach, reach) + reach
    weights = jumps[width]
    scale = (1 - NO_LINK) / weights.cumsum(1)[:, lengths - 1].mT
    stay = NO_LINK * null[..., None]

    # forward: probabilities of the last linked place, given all words so far
    last = emission.new_zeros(num_target + 1, count, num_source + 1)
    last[0, :, 0] = 1
    moved, sums = torch.empty_like(emission), torch.empty_like(stay)
    before, linked = last.unbind(), last[1:, :, 1:].unbind()
    words = zip(emission.unbind(), stay.unbind(), moved.unbind(), sums.unbind(), strict=True)
    for j, (says, unlinked, arrived, total) in enumerate(words):
        torch.mm(before[j] * scale, weights, out=arrived)
        torch.mul(before[j], unlinked, out=before[j + 1])
        linked[j].addcmul_(arrived, says)
        torch.sum(before[j + 1], 1, keepdim=True, out=total)
        before[j + 1].div_(total)

    # backward: gradients of the log evidence with respect to these probabilities
    stay, slope = stay / sums, torch.ones_like(last[0])
    arriving, null_posterior = emission / sums, torch.empty_like(null)
    back = list(zip(arriving.unbind(), stay.unbind(), before, null_posterior.unbind(), strict=False))
    for into, unlinked, here, nothing in reversed(back):
        torch.sum(here * slope, 1, out=nothing)
        into.mul_(slope[:, 1:])
        slope = torch.mm(into, weights.mT).mul_(scale).addcmul_(slope, unlinked)
    jumped = weights * ((last[:-1] * scale).flatten(0, 1).mT @ arriving.flatten(0, 1))
    return Posterior(
        moved * arriving,
        null_posterior * stay[..., 0],
        torch.zeros_like(jumps).index_add_(0, width.flatten(), jumped.flatten()),
        sums[..., 0].log().sum(0),
    )
