"""Alignment error rates of many sentences: by combination of both directions, chosen on other sentences, resampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from experiments.nmt.config import ProbabilityCombineName
from experiments.nmt.linking import link_both
from experiments.report.statistics import Difference, Estimate
from pyro_attention.analysis import Alignment, AlignmentScores, GoldAlignment, alignment_error_rate, hard_alignment

__all__ = [
    "COMBINATIONS", "FIXED", "WAYS", "Chosen", "Interval", "Linked", "bootstrap", "chosen_links", "link_all",
    "scores_of",
]  # fmt: skip

Weights = tuple[Tensor, Tensor]  # of a pair in both directions, [M, N] and [N, M]
Linker = Callable[[Tensor, Tensor], Alignment]
RESAMPLES = 5000


def _forward(forward: Tensor, _: Tensor) -> Alignment:
    return hard_alignment(forward)


def _backward(_: Tensor, backward: Tensor) -> Alignment:
    return hard_alignment(backward).transposed()


COMBINATIONS: dict[str, Linker] = {
    "source to target": _forward,
    "target to source": _backward,
    "intersection": partial(link_both, combine="intersection"),
    "union": partial(link_both, combine="union"),
    "grow-diag-final-and": partial(link_both, combine="grow-diag-final-and"),
    "mean, mbr": partial(link_both, combine="mean", method="mbr"),
    "geometric, mbr": partial(link_both, combine="geometric", method="mbr"),
}
FIXED = ("grow-diag-final-and", "geometric, mbr")  # ways that have nothing to be chosen by gold links
_THRESHOLDS: dict[ProbabilityCombineName, tuple[float, ...]] = {
    "mean": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    "product": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
}
WAYS: dict[str, Linker] = COMBINATIONS | {
    f"{combine} > {threshold}": partial(link_both, combine=combine, method="threshold", threshold=threshold)
    for combine, thresholds in _THRESHOLDS.items()
    for threshold in thresholds
}


@dataclass(frozen=True)
class Linked:
    """Links of all gold sentences, and their counts.

    Attributes:
        links: An alignment for each.
        counts: Predicted links, sure ones, predicted sure and predicted possible ones, int64 ``[sentences, 4]``.
    """

    links: list[Alignment]
    counts: Tensor


@dataclass(frozen=True)
class Chosen(Linked):
    """Links of every sentence in the way that was best for other sentences.

    Attributes:
        ways: What was chosen for the even sentences, on the odd ones, and the other way round.
    """

    ways: tuple[str, str]


def link_all(weights: Sequence[Weights], linker: Linker, gold: Sequence[GoldAlignment]) -> Linked:
    """Links of all sentences in one way."""
    links = [linker(*pair) for pair in weights]
    rows = [alignment_error_rate([found], [truth]) for found, truth in zip(links, gold, strict=True)]
    counts = [(one.num_predicted, one.num_sure, one.num_predicted_sure, one.num_predicted_possible) for one in rows]
    return Linked(links, torch.tensor(counts))


def scores_of(counts: Tensor) -> AlignmentScores:
    """Scores of counts ``[sentences, 4]``."""
    return AlignmentScores(len(counts), *counts.sum(0).tolist())


def chosen_links(weights: Sequence[Weights], gold: Sequence[GoldAlignment]) -> Chosen:
    """Links of the way of linking that has the lowest error rate on the sentences of the other half.

    So nothing is chosen on the sentences it is scored on. Halves are the even and the odd sentences.

    Raises:
        ValueError: Fewer than two sentences.
    """
    if len(gold) < 2:
        raise ValueError(f"{len(gold)} gold sentences, expected 2 at least: half of them choose for the other half")
    found = {name: link_all(weights, linker, gold) for name, linker in WAYS.items()}
    best = [min(found, key=lambda name: scores_of(found[name].counts[1 - half :: 2]).aer) for half in (0, 1)]
    links = [found[best[place % 2]].links[place] for place in range(len(gold))]
    counts = torch.stack([found[best[place % 2]].counts[place] for place in range(len(gold))])
    return Chosen(links, counts, (best[0], best[1]))


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval over sentences."""

    value: float
    low: float
    high: float

    @property
    def percent(self) -> Estimate:
        """The number as a cell of a table, in percent.

        Example:
            >>> print(Interval(0.25, 0.2, 0.31).percent)
            25.0 [20.0, 31.0]
        """
        return Estimate(100 * self.value, digits=1, low=100 * self.low, high=100 * self.high)

    def minus(self, against: str, way: str) -> Difference:
        """The number as a cell, a difference of error rates to another aligner's, of links made in the same way."""
        numbers = (100 * self.value, 100 * self.low, 100 * self.high)
        return Difference(*numbers, digits=1, metric=f"AER, {way}", against=against, better="lower", over="items")


def bootstrap(counts: Tensor, baseline: Tensor | None = None, *, resamples: int = RESAMPLES) -> Interval:
    """Mean error rate over seeds, or its difference to a baseline's, with its interval over resampled sentences.

    Both are computed on the same sentences of each sample, so what makes sentences hard for both cancels out. The
    sentences are drawn with a seed of their own: the same counts give the same interval.

    Args:
        counts: ``[seeds, sentences, 4]``, as of :class:`Linked`.
        baseline: Counts of the same sentences; any number of seeds.
        resamples: Number of samples.
    """
    sentences = counts.size(1)
    drawn = np.random.default_rng(0).multinomial(sentences, np.full(sentences, 1 / sentences), size=resamples)
    times = torch.from_numpy(drawn).double()

    def rates(part: Tensor, weights: Tensor) -> Tensor:
        predicted, sure, right, possible = torch.einsum("rs,nsk->krn", weights, part.double())
        return (1 - (right + possible) / (predicted + sure).clamp_min(1)).mean(-1)

    all_once = torch.ones(1, sentences, dtype=torch.float64)
    value, samples = rates(counts, all_once), rates(counts, times)
    if baseline is not None:
        value, samples = value - rates(baseline, all_once), samples - rates(baseline, times)
    low, high = samples.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value.item(), low, high)
