"""Sums over the jumps of the hidden Markov model, as a matrix or, for long texts, as a convolution.

A state is the place of the last linked source word, of which there are N, and before them the start: ``[N + 1, B]``.
A jump from state i' to place i has the weight of its width i - i'; jumps longer than the table has weigh what its ends
do.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

__all__ = ["NO_LINK", "BandedMoves", "DenseMoves"]

NO_LINK = 0.1  # prior probability of NULL


class DenseMoves:
    """Jumps as a matrix; fastest for sentences."""

    def __init__(self, jumps: Tensor, num_source: int) -> None:
        places = torch.arange(num_source, device=jumps.device)
        reach = len(jumps) // 2
        self.width = (places - torch.arange(-1, num_source, device=jumps.device)[:, None]).clamp(-reach, reach) + reach
        self.jumps, self.weights = jumps, jumps[self.width]
        self.into = self.weights.mT.contiguous()

    def scale(self, lengths: Tensor) -> Tensor:
        """Return the factors of the weights of the jumps from every state, ``[N + 1, B]``."""
        return (1 - NO_LINK) / self.weights.cumsum(1).index_select(1, lengths - 1)

    def follow(self, before: Tensor, out: Tensor) -> None:
        """Sum over the states before every place, ``[N, B]``."""
        torch.mm(self.into, before, out=out)

    def lead(self, word: Tensor, out: Tensor) -> None:
        """Add the sum over the places that follow every state, ``[N + 1, B]``."""
        out.addmm_(self.weights, word)

    def count(self, before: Tensor, words: Tensor) -> Tensor:
        """Expected number of jumps of each width, by all states before and the places that follow them."""
        jumped = torch.zeros_like(self.weights)
        for here, word in zip(before.unbind(), words.unbind(), strict=True):
            jumped.addmm_(here, word.mT)
        return torch.zeros_like(self.jumps).index_add_(0, self.width.flatten(), jumped.mul_(self.weights).flatten())


class BandedMoves:
    """Jumps within the reach K of their table as a convolution, and all longer ones as two sums.

    The result is that of :class:`DenseMoves`; a step takes time that grows as N, and no matrix of N x N is made.
    """

    def __init__(self, jumps: Tensor, num_source: int) -> None:
        self.jumps, self.reach, self.num_source = jumps, len(jumps) // 2, num_source
        inner = jumps[1:-1]
        self.to_places, self.to_states = inner.flip(0)[None, None], inner[None, None].contiguous()

    def scale(self, lengths: Tensor) -> Tensor:
        """Return the factors of the weights of the jumps from every state, ``[N + 1, B]``."""
        reach, state = self.reach, torch.arange(-1, self.num_source, device=lengths.device)[:, None]
        first, last = -state, lengths - 1 - state  # widths of the jumps to the first and to the last place
        sums = pad(self.jumps.double().cumsum(0), (1, 0))
        total = sums[last.clamp(-reach - 1, reach) + reach + 1] - sums[first.clamp(-reach, reach + 1) + reach]
        total = total + self.jumps[0] * (last.clamp_max(-reach - 1) - first + 1).clamp_min(0)
        total = total + self.jumps[-1] * (last - first.clamp_min(reach + 1) + 1).clamp_min(0)
        return ((1 - NO_LINK) / total).to(self.jumps.dtype)

    def follow(self, before: Tensor, out: Tensor) -> None:
        """Sum over the states before every place, ``[N, B]``."""
        reach, size = self.reach, self.num_source
        near = conv1d(pad(before.mT, (reach - 2, reach - 1))[:, None], self.to_places)[:, 0]
        out.copy_(near.mT)
        # places from which a state lies further than the reach, to the left and to the right
        if size > reach - 1:
            out[reach - 1 :].addcmul_(before.cumsum(0)[: size - reach + 1], self.jumps[-1])
        if size > reach:
            out[: size - reach].addcmul_(_sums_from(before)[reach + 1 :], self.jumps[0])

    def lead(self, word: Tensor, out: Tensor) -> None:
        """Add the sum over the places that follow every state, ``[N + 1, B]``."""
        reach, size = self.reach, self.num_source
        near = conv1d(pad(word.mT, (reach, reach - 1))[:, None], self.to_states)[:, 0]
        out.add_(near.mT)
        if size > reach - 1:
            out[: size - reach + 1].addcmul_(_sums_from(word)[reach - 1 :], self.jumps[-1])
        if size > reach:
            out[reach + 1 :].addcmul_(word.cumsum(0)[: size - reach], self.jumps[0])

    def count(self, before: Tensor, words: Tensor) -> Tensor:
        """Expected number of jumps of each width, by all states before and the places that follow them."""
        reach, size = self.reach, self.num_source
        jumped = torch.zeros_like(self.jumps)
        for width in range(1 - reach, reach):  # from state a, which is place a - 1, to place a - 1 + width
            first, last = max(0, 1 - width), min(size, size - width)
            if first > last:
                continue
            here, there = before[:, first : last + 1], words[:, first - 1 + width : last + width]
            jumped[width + reach] = (here * there).sum()
        if size > reach - 1:
            jumped[-1] = (before[:, : size - reach + 1] * _sums_from(words, 1)[:, reach - 1 :]).sum()
        if size > reach:
            jumped[0] = (before[:, reach + 1 :] * words.cumsum(1)[:, : size - reach]).sum()
        return jumped.mul_(self.jumps)


def _sums_from(values: Tensor, dim: int = 0) -> Tensor:
    """Sums of every place and all that follow."""
    return values.flip(dim).cumsum(dim).flip(dim)
