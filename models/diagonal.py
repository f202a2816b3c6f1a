"""A preference of attention for the diagonal: translations mostly keep the order of the words."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["DiagonalBias"]


class DiagonalBias(nn.Module):
    r"""Scores that fall with the distance from the diagonal, :math:`-\lambda\, |i / N - j / M|`.

    Added to the scores of an attention it leaves them as contextual as they were; alone it is the alignment prior of
    fast_align, without its probability of no link. The places i and j are those of the middles of the words. The length
    M of a sentence that is being written is not known, and the model of the words must not know it: it is taken to be
    :math:`r N`, and words beyond that are at the end. Both :math:`\lambda` and r are trained.

    Args:
        strength: :math:`\lambda` that training begins with, positive; fast_align begins with 4.
        ratio: r that training begins with, positive.

    Raises:
        ValueError: An argument is not positive and finite.

    Example:
        >>> bias = DiagonalBias(strength=4.0)
        >>> bias(torch.ones(1, 4, dtype=torch.bool), 0).detach()
        tensor([[-0., -1., -2., -3.]])

    Source: Dyer, Chahuneau and Smith (2013), A Simple, Fast, and Effective Reparameterization of IBM Model 2.
    """

    def __init__(self, strength: float = 4.0, ratio: float = 1.0) -> None:
        super().__init__()
        for name, value in (("strength", strength), ("ratio", ratio)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}, expected a positive finite number")
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

    def extra_repr(self) -> str:
        strength, ratio = (part.detach().exp().item() for part in (self.log_strength, self.log_ratio))
        return f"strength={strength:.3g}, ratio={ratio:.3g}"
