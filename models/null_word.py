"""NULL, the source word of target words that translate none."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["PROBABILITY", "NullWord"]

PROBABILITY = 0.08  # of NULL in fast_align


class NullWord(nn.Module):
    r"""One more thing to attend to, a trained vector before all source words, for target words that translate none.

    Its score is that of any other key, or such that its probability is known,

    .. math:: \Phi_0 = \log \sum_{i > 0} e^{\Phi_i} + \log \frac{p_0}{1 - p_0}.

    Args:
        width: Width of what is attended to.
        probability: :math:`p_0` under the prior, between 0 and 1; that of its score when None.

    Raises:
        ValueError: ``probability`` is not between 0 and 1.

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
        if probability is not None and not 0 < probability < 1:
            raise ValueError(f"probability is {probability}, expected a number between 0 and 1, both excluded, or None")
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

    def extra_repr(self) -> str:
        return f"{len(self.vector)}, probability={self.probability}"
