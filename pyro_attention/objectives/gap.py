"""Gap that few draws leave below the log evidence: its record, and a warning that names the draws to take."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_attention.objectives.correction import CLIP, EvidenceBound

__all__ = ["MOST_GAP", "GapRecord", "GapWarning", "GapWatch", "draws_to_take", "gap_problem"]

MOST_GAP = 0.2  # as a share of what an item says of the noise; learned widths are too small by about this share
_EVERY, _FIRST_CHECK = 20, 100  # training steps


class GapWarning(UserWarning):
    """Warning that the draws are too few to learn the widths of attention weights."""


@dataclass(frozen=True)
class GapRecord:
    """Gap between log evidence and objective in one evaluation, estimated by the jackknife; numbers as tensors.

    Attributes:
        mean: Gap between objective and log evidence in nats, a mean over the items; of a corrected objective the part
            that the correction leaves.
        largest: Gap of the item with the largest one, in nats.
        share: Share of the items whose draws are too few: one or two carry the weight, and the bound of K draws is
            lower than the log evidence by 0.3 nats or more.
    """

    mean: Tensor
    largest: Tensor
    share: Tensor

    @classmethod
    def of(cls, bound: EvidenceBound) -> GapRecord:
        """Record the gaps of the items of one evaluation."""
        too_few = (bound.gap > CLIP).to(bound.gap.dtype)
        return cls(bound.remainder.mean(), bound.remainder.max(), too_few.mean())


@dataclass
class GapWatch:
    """Comparison, at intervals of the training, of the gap with the evidence of the noise in the items.

    What an item says of the noise in the attention is its log evidence minus its log likelihood with the mean weights;
    widths are learned from it. The gap grows with the widths, so widths come out too small: about by the share of the
    gap in what the items say, in fits of four models by 4 to 128 draws.

    Attributes:
        steps: Training steps so far.
        draws: Draws of the last step.
        warned: The number of draws that the last warning named; 0 where there was none.
    """

    steps: int = 0
    draws: int = 0
    warned: int = 0
    _gaps: list[Tensor] = field(default_factory=list)  # means of a batch, since the last check
    _signals: list[Tensor] = field(default_factory=list)

    def step(self, bound: EvidenceBound, draws: int, log_likelihood_at_mean: Callable[[], Tensor]) -> None:
        """Note a training step, and warn at steps 100, 200, 400, 800 and so on.

        Args:
            bound: Bounds of the items of the batch.
            draws: Number of draws K.
            log_likelihood_at_mean: Runs the model with the mean weights, once in twenty steps.
        """
        self.steps, self.draws = self.steps + 1, draws
        if self.steps % _EVERY == 0:
            # means of their own: a subsampled plate may have drawn other items
            self._signals.append(bound.value.mean() - log_likelihood_at_mean().mean())
            self._gaps.append(bound.remainder.mean())
        doubled = self.steps / _FIRST_CHECK
        if doubled >= 1 and math.log2(doubled).is_integer():
            self.check()
            self._gaps, self._signals = [], []

    def check(self) -> None:
        """Warn of :class:`GapWarning` where the gap of the steps since the last check is too large.

        What the items say is known with an error, and only where the gap is too large for the mean plus two standard
        errors a warning is due.
        """
        if len(self._signals) < 2:
            return
        signals = torch.stack(self._signals).double()
        error = signals.std().item() / math.sqrt(len(signals))
        gap, signal = torch.stack(self._gaps).double().mean().item(), signals.mean().item() + 2 * error
        problem = gap_problem(gap, signal, self.draws)
        if problem is not None and (needed := draws_to_take(gap, signal, self.draws)) > self.warned:
            self.warned = needed
            warnings.warn(problem, GapWarning, stacklevel=2)


def gap_problem(gap: float, signal: float, draws: int) -> str | None:
    """Describe a gap that is too large for the signal of the items; return None if it is small enough.

    Args:
        gap: Mean gap of an item, in nats.
        signal: Log evidence of an item minus its log likelihood with the mean weights, on average, in nats.
        draws: Number of draws K.
    """
    if gap <= MOST_GAP * signal:
        return None
    share, needed = f"{gap / signal:.0%} of" if signal > 0 else "more than", draws_to_take(gap, signal, draws)
    return (
        f"{draws} draws are too few to learn the width of attention weights: they leave a gap of {gap:.2g} nats "
        f"an item, {share} its {max(signal, 0.0):.2g} nats of evidence for noise in the attention (at most "
        f"{MOST_GAP:.0%}), and widths come out too small by about that share. Take "
        f"num_particles={needed}, with the correction, or a guide that sees y (Amortized); check_width "
        f"shows how far widths are off"
    )


def draws_to_take(gap: float, signal: float, draws: int) -> int:
    """Return a number of draws, a power of two times today's, that leaves a gap small enough to learn widths.

    The gap falls at least as fast as the number of draws grows. Four times the draws at least, and 64 times at most.
    """
    doublings = math.ceil(math.log2(gap / (MOST_GAP * signal))) if signal > 0 else 6
    return int(draws * 2 ** max(2, min(6, doublings)))
