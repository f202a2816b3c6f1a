"""A preference of attention for what is near the last word's alignment: translations move on by small jumps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Jumps"]


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

    Raises:
        ValueError: ``most`` is below 1.

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
        if most < 1:
            raise ValueError(f"most is {most}, expected at least 1")
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

    def extra_repr(self) -> str:
        return f"most={self.most}"
