"""Links from the probabilities of both directions, their error rates, and the calibration of the probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from experiments.aligners.ibm import SentencePair
from pyro_attention.analysis import Alignment, AlignmentScores, GoldAlignment, alignment_error_rate, mbr_alignment

RESAMPLES = 5000  # resampled sets of sentences of an interval
CHANCES = 2000  # draws of events
BINS = 15  # bins of the expected calibration error


@dataclass(frozen=True)
class Aligned:
    """Probabilities of the links of sentence pairs by both directions.

    Attributes:
        forward: Probabilities ``[M, N]`` of each pair by the model of target words.
        backward: Probabilities ``[N, M]`` of each pair by the model of source words.
        certainty: Certainty of every target word, ``[M]`` of each pair; None takes the largest mean probability.
    """

    forward: Sequence[Tensor]
    backward: Sequence[Tensor]
    certainty: Sequence[Tensor] | None = None

    @property
    def mean(self) -> list[Tensor]:
        """Probability of each link, the mean of both directions, ``[M, N]`` of each pair."""
        return [(forward + backward.mT) / 2 for forward, backward in zip(self.forward, self.backward, strict=True)]

    @property
    def links(self) -> list[Alignment]:
        """Links of minimum Bayes risk under the geometric mean of both directions; they use no gold link."""
        pairs = zip(self.forward, self.backward, strict=True)
        return [mbr_alignment((forward * backward.mT).sqrt()) for forward, backward in pairs]


def link_counts(links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Tensor:
    """Count predicted, sure, predicted sure, and predicted possible links of each pair, int64 ``[sentences, 4]``."""
    scores = [alignment_error_rate([written], [truth]) for written, truth in zip(links, gold, strict=True)]
    return torch.tensor(
        [
            (score.num_predicted, score.num_sure, score.num_predicted_sure, score.num_predicted_possible)
            for score in scores
        ]
    )


def total_scores(counts: Tensor) -> AlignmentScores:
    """Return scores over all sentences, of counts ``[sentences, 4]``."""
    return AlignmentScores(len(counts), *counts.sum(0).tolist())


def bootstrap(counts: Tensor, baseline: Tensor | None = None) -> tuple[float, float, float]:
    """Compute an alignment error rate in percent, or its difference from a baseline, with a 95 % interval.

    The interval is over resampled sentences. Both rates are computed on the same sentences of each sample, so that
    effects of hard sentences cancel. The seed is fixed, so that the same counts give the same interval.

    Args:
        counts: Counts of :func:`link_counts`, ``[sentences, 4]``.
        baseline: Counts of the baseline.

    Returns:
        The rate or difference, and the lower and upper end of its interval.
    """
    sentences = len(counts)
    drawn = np.random.default_rng(0).multinomial(sentences, np.full(sentences, 1 / sentences), size=RESAMPLES)
    times = torch.from_numpy(np.concatenate([np.ones((1, sentences)), drawn]))  # first all sentences once

    def rates(part: Tensor) -> Tensor:
        predicted, sure, right, possible = (times @ part.double()).unbind(1)
        return 1 - (right + possible) / (predicted + sure).clamp_min(1)

    percent = 100 * (rates(counts) if baseline is None else rates(counts) - rates(baseline))
    low, high = percent[1:].quantile(percent.new_tensor([0.025, 0.975])).tolist()
    return percent[0].item(), low, high


def written_links(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> tuple[Tensor, Tensor]:
    """Return the probability of every written link, and 1 if it is a gold link or else 0, float64 ``[links]`` each."""
    probabilities, right = list[Tensor](), list[Tensor]()
    for mean, written, truth in zip(aligned.mean, links, gold, strict=True):
        mask = written.to_matrix()
        probabilities.append(mean[mask].double())
        right.append(replace(written, links=truth.possible).to_matrix()[mask].double())
    return torch.cat(probabilities), torch.cat(right)


def calibration_error(probabilities: Tensor, right: Tensor) -> float:
    """Compute the expected calibration error of probabilities ``[n]`` of events that are true (1) or false (0)."""
    return float(binary_calibration_error(probabilities.clamp(0, 1).float(), right.long(), n_bins=BINS))


def chance_error(probabilities: Tensor) -> tuple[float, float]:
    """Compute the calibration error that right probabilities ``[n]`` have by chance, as there are so few events.

    The events are drawn anew from the probabilities, with a fixed seed.

    Returns:
        Mean and 97.5 % quantile over draws.
    """
    generator = torch.Generator().manual_seed(0)
    bins = (probabilities.clamp(0, 1) * BINS).ceil().long().sub(1).clamp_min(0)
    errors = list[float]()
    for _ in range(CHANCES):
        right = torch.bernoulli(probabilities.clamp(0, 1), generator=generator)
        sums = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, right - probabilities)
        errors.append((sums.abs().sum() / len(probabilities)).item())
    return float(np.mean(errors)), float(np.quantile(errors, 0.975))


def rarer_counts(links: Sequence[Alignment], pairs: Sequence[SentencePair], text: Sequence[SentencePair]) -> Tensor:
    """Return how often the rarer word of every written link stands in a text, int64 ``[links]``.

    Args:
        links: Written links, as in :func:`written_links`.
        pairs: The words of each pair.
        text: The text whose words are counted.
    """
    source, target = (Counter(word for pair in text for word in pair[side]) for side in (0, 1))
    counts = list[Tensor]()
    for written, (first, second) in zip(links, pairs, strict=True):
        table = torch.tensor([[min(source[s], target[t]) for s in first] for t in second], dtype=torch.int64)
        counts.append(table.view(len(second), len(first))[written.to_matrix()])
    return torch.cat(counts)


def coverage_curve(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Tensor:
    """Compute the error rate of the links of the most certain target words, for every number of words.

    The certainty of a word is the largest mean probability of its links, unless the aligner gives another. Predicted
    and gold links of other words are not counted, so that leaving out a word does not reduce the recall.

    Returns:
        float64 ``[words]``.
    """
    certain, right, total = list[Tensor](), list[Tensor](), list[Tensor]()
    for number, (mean, alignment, truth) in enumerate(zip(aligned.mean, links, gold, strict=True)):
        certain.append((mean.amax(-1) if aligned.certainty is None else aligned.certainty[number]).double())
        written = alignment.to_matrix()
        sure, possible = (replace(alignment, links=part).to_matrix() for part in (truth.sure, truth.possible))
        right.append((written & sure).sum(-1) + (written & possible).sum(-1))
        total.append(written.sum(-1) + sure.sum(-1))
    order = torch.cat(certain).argsort(descending=True, stable=True)
    rights, totals = (torch.cat(part)[order].cumsum(0).double() for part in (right, total))
    return torch.where(totals > 0, 1 - rights / totals.clamp_min(1), 0.0)


def rate_at(curve: Tensor, coverage: float) -> float:
    """Return the error rate at the smallest number of words that reaches a coverage in (0, 1]."""
    # 0.07 * 100 is 7.000000000000001, and should be 7
    return curve[math.ceil(coverage * len(curve) * (1 - 1e-12)) - 1].item()
