"""Alignments in both directions, scored on gold links: error rates by way of linking, and what certainty is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from experiments.nmt.alignments import PairAlignment, combine_pairs, combine_weights, link_both
from experiments.nmt.config import ProbabilityCombineName
from experiments.nmt.em_aligners import SentencePair
from pyro_attention.analysis import (
    Alignment,
    AlignmentScores,
    GoldAlignment,
    agreement,
    alignment_error_rate,
    hard_alignment,
)
from pyro_attention.analysis.inputs import equal_tailed

__all__ = [
    "COMBINATIONS", "COVERAGE", "FIXED", "WAYS", "Aligned", "Chosen", "Links", "RowScores", "aligned_words",
    "bootstrap", "calibration_error", "certainty", "chosen_links", "coverage_curve", "link_all", "linked_words",
    "rate_at", "score_row",
]  # fmt: skip

RESAMPLES = 5000
COVERAGE = (0.5, 0.7, 0.9)
BINS, LEVEL = 15, 0.9
Weights = tuple[Tensor, Tensor]  # of a pair in both directions, [M, N] and [N, M]
Linker = Callable[[Tensor, Tensor], Alignment]


@dataclass(frozen=True)
class Aligned:
    """Alignments of the same sentence pairs in both directions; those of ``backward`` have the sides swapped."""

    forward: Sequence[PairAlignment]
    backward: Sequence[PairAlignment]

    def weights(self, kind: str) -> list[Weights] | None:
        """Mean weights of each pair: "posterior", "prior" or "exact"; None without them."""
        if kind == "posterior":
            return self.posterior
        pairs = [(getattr(one, kind), getattr(other, kind)) for one, other in self._pairs]
        return pairs if all(weights is not None for pair in pairs for weights in pair) else None

    @property
    def posterior(self) -> list[Weights]:
        """Mean posterior weights of each pair."""
        return [(one.posterior.mean(0), other.posterior.mean(0)) for one, other in self._pairs]

    @property
    def entropies(self) -> list[Tensor]:
        """Entropy in nats of the source distribution of every target word, ``[M]`` of each pair.

        What a row lacks to one is the probability of no link, and not counted.
        """
        return [torch.special.entr(one.double()).sum(-1) for one, _ in self.posterior]

    @property
    def agreement(self) -> float:
        """F1 between the links of one direction and of the other: every word with its most probable one."""
        links = [[hard_alignment(part) for part in side] for side in zip(*self.posterior, strict=True)]
        return agreement({"forward": links[0], "backward": [one.transposed() for one in links[1]]})[0, 1].item()

    @cached_property
    def combined(self) -> list[PairAlignment]:
        """The mean of both directions: the probability of each link, with samples where there are any."""
        return [combine_pairs(*pair, combine="mean") for pair in self._pairs]

    @property
    def _pairs(self) -> list[tuple[PairAlignment, PairAlignment]]:
        return list(zip(self.forward, self.backward, strict=True))


def aligned_words(pairs: Sequence[SentencePair], weights: Sequence[Weights]) -> Aligned:
    """Weights ``[M, N]`` and ``[N, M]`` of every pair as alignments of its words."""
    forward, backward = list[PairAlignment](), list[PairAlignment]()
    for (source, target), (one, other) in zip(pairs, weights, strict=True):
        forward.append(PairAlignment(list(source), list(target), None, one.unsqueeze(0)))
        backward.append(PairAlignment(list(target), list(source), None, other.unsqueeze(0)))
    return Aligned(forward, backward)


# Error rates


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
class Chosen:
    """Links of every gold sentence in one way, or in that which was best for other sentences.

    Attributes:
        links: An alignment for each.
        counts: Predicted links, sure ones, predicted sure and predicted possible ones, int64 ``[sentences, 4]``.
        ways: The way; or what was chosen for the even sentences, on the odd ones, and the other way round.
    """

    links: list[Alignment]
    counts: Tensor
    ways: tuple[str, ...]

    @property
    def scores(self) -> AlignmentScores:
        """Scores over all sentences."""
        return _scores(self.counts)


def _scores(counts: Tensor) -> AlignmentScores:
    return AlignmentScores(len(counts), *counts.sum(0).tolist())


def link_all(weights: Sequence[Weights], way: str, gold: Sequence[GoldAlignment]) -> Chosen:
    """Links of all sentences in one way."""
    links = [WAYS[way](*pair) for pair in weights]
    rows = [alignment_error_rate([found], [truth]) for found, truth in zip(links, gold, strict=True)]
    counts = [(one.num_predicted, one.num_sure, one.num_predicted_sure, one.num_predicted_possible) for one in rows]
    return Chosen(links, torch.tensor(counts), (way,))


def chosen_links(weights: Sequence[Weights], gold: Sequence[GoldAlignment]) -> Chosen:
    """Links of the way of linking that has the lowest error rate on the sentences of the other half.

    So nothing is chosen on the sentences it is scored on. Halves are the even and the odd sentences.

    Raises:
        ValueError: Fewer than two sentences.
    """
    if len(gold) < 2:
        raise ValueError(f"{len(gold)} gold sentences, expected 2 at least: half of them choose for the other half")
    found = {way: link_all(weights, way, gold) for way in WAYS}
    best = [min(found, key=lambda way: _scores(found[way].counts[1 - half :: 2]).aer) for half in (0, 1)]
    links = [found[best[place % 2]].links[place] for place in range(len(gold))]
    counts = torch.stack([found[best[place % 2]].counts[place] for place in range(len(gold))])
    return Chosen(links, counts, tuple(best))


def bootstrap(counts: Tensor, baseline: Tensor | None = None) -> tuple[float, float, float]:
    """Mean error rate over seeds in percent, or its difference to a baseline's, and the ends of its 95 % interval.

    The interval is over resampled sentences. Both rates are computed on the same sentences of each sample, so what
    makes sentences hard for both cancels out. The sentences are drawn with a seed of their own: the same counts give
    the same interval.

    Args:
        counts: ``[seeds, sentences, 4]``, as of :class:`Chosen`.
        baseline: Counts of the same sentences; any number of seeds.
    """
    sentences = counts.size(1)
    drawn = np.random.default_rng(0).multinomial(sentences, np.full(sentences, 1 / sentences), size=RESAMPLES)
    times = torch.from_numpy(np.concatenate([np.ones((1, sentences)), drawn]))  # all once, and the samples

    def rates(part: Tensor) -> Tensor:
        predicted, sure, right, possible = torch.einsum("rs,nsk->krn", times, part.double())
        return (1 - (right + possible) / (predicted + sure).clamp_min(1)).mean(-1)

    found = 100 * (rates(counts) if baseline is None else rates(counts) - rates(baseline))
    low, high = found[1:].quantile(found.new_tensor([0.025, 0.975])).tolist()
    return found[0].item(), low, high


# Certainty


@dataclass(frozen=True)
class Links:
    """The written links of all sentences, in one order; each tensor ``[links]``.

    Attributes:
        right: Whether each is a gold link, at least a possible one.
        mean, product, forward: Its probability: by the mean and by the product of both directions, by one alone.
        width: Width of the credible interval of the mean; None where there are no samples.
        entropy: Entropy of the source distribution of its target word, in nats.
        places: Sentence and target word of each, ``[links, 2]``.
    """

    right: Tensor
    mean: Tensor
    product: Tensor
    forward: Tensor
    width: Tensor | None
    entropy: Tensor
    places: Tensor


def linked_words(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Links:
    """Look up the probabilities of written links."""
    columns: dict[str, list[float]] = {name: [] for name in ("right", "mean", "product", "forward", "width", "entropy")}
    places, sampled = [], len(aligned.combined[0].posterior) > 1
    weights = zip(aligned.posterior, aligned.entropies, strict=True)
    sentences = zip(links, gold, aligned.combined, weights, strict=True)
    for number, (found, truth, pair, ((forward, backward), entropies)) in enumerate(sentences):
        both = combine_weights(forward, backward, combine="product")
        mean = pair.posterior.mean(0)
        low, high = equal_tailed(pair.posterior, LEVEL)[1:] if sampled else (mean, mean)
        tables = {"mean": mean, "product": both, "forward": forward, "width": high - low}
        for source, target in sorted(found.links):
            places.append((number, target))
            columns["right"].append((source, target) in truth.possible)
            columns["entropy"].append(entropies[target].item())
            for name, table in tables.items():
                columns[name].append(table[target, source].item())
    values = {name: torch.tensor(column, dtype=torch.float64) for name, column in columns.items()}
    right, width = values.pop("right").bool(), values.pop("width")
    places_of = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
    return Links(right=right, width=width if sampled else None, places=places_of, **values)


def certainty(links: Links, soft_entropies: Sequence[Tensor] | None) -> dict[str, float]:
    """Calibration of the probabilities of links, and areas under the ROC curve of telling wrong links from right ones.

    Areas need right and wrong links. By ``soft_entropies``, those ``[M]`` of soft attention for every sentence, they
    are of the same links.
    """
    if not len(links.right):
        return {}
    found = {f"ece_{name}": calibration_error(links, name) for name in ("mean", "product", "forward")}
    uncertainty = {"probability": 1 - links.mean, "entropy": links.entropy}
    if links.width is not None:
        uncertainty["width"] = links.width
    if soft_entropies is not None:
        uncertainty["soft_entropy"] = torch.stack([soft_entropies[i][j] for i, j in links.places.tolist()])
    if links.right.all() or not links.right.any():
        return found
    wrong = (~links.right).numpy()
    return found | {f"auroc_{name}": float(roc_auc_score(wrong, values)) for name, values in uncertainty.items()}


def calibration_error(links: Links, name: str) -> float:
    probabilities: Tensor = getattr(links, name)
    return float(binary_calibration_error(probabilities.clamp(0, 1).float(), links.right.long(), n_bins=BINS))


def coverage_curve(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Tensor:
    """Error rate of the links of the most certain target words, for every number of them, float64 ``[words]``.

    A word's certainty is the largest probability of a link of its, by the mean of both directions. A word left out
    counts in no way, with its predicted and gold links, so an aligner does not lose recall by saying that it does not
    know.
    """
    certain, counts = [], []
    for pair, found, truth in zip(aligned.combined, links, gold, strict=True):
        certain.append(pair.posterior.mean(0).amax(-1).double())
        table = torch.zeros(len(pair.target), 2, dtype=torch.int64)  # what the rate divides: right, and all
        for link in found.links:
            table[link[1]] += torch.tensor([(link in truth.sure) + (link in truth.possible), 1])
        for _, target in truth.sure:
            table[target, 1] += 1
        counts.append(table)
    order = torch.cat(certain).argsort(descending=True, stable=True)
    right, total = torch.cat(counts)[order].cumsum(0).double().unbind(-1)
    return torch.where(total > 0, 1 - right / total.clamp_min(1), 0.0)


def rate_at(curve: Tensor, coverage: float) -> float:
    """Error rate at the least number of words that reaches a coverage in (0, 1]."""
    # 0.07 * 100 is 7.000000000000001, and means 7
    return curve[math.ceil(coverage * len(curve) * (1 - 1e-12)) - 1].item()


# Rows


@dataclass(frozen=True)
class RowScores:
    """What is said of one row.

    Attributes:
        runs: Metrics of every seed.
        counts: Counts of the posterior's links, ``[seeds, sentences, 4]``, by the way of FIXED, or "chosen"; under
            "exact" those of the chosen links by the exact posterior, where the posterior is of an inference network.
        ways: How the chosen ones were chosen, each different way once.
        links: The written links of the first seed.
        curve: The coverage curve of the first seed.
    """

    runs: list[dict[str, float]]
    counts: dict[str, Tensor]
    ways: list[str]
    links: Links
    curve: Tensor


def score_row(
    aligned: Sequence[Aligned], gold: Sequence[GoldAlignment], soft: Sequence[Aligned] | None = None
) -> RowScores:
    """Score the alignments of every seed; with those of soft attention its entropy is compared."""
    runs, counts, chosen = list[dict[str, float]](), dict[str, list[Tensor]](), list[Chosen]()
    links, curves = list[Links](), list[Tensor]()
    for number, one in enumerate(aligned):
        metrics = dict[str, float]()
        best = chosen_links(one.posterior, gold)
        for kind in ("posterior", "prior", "exact"):
            if (weights := one.weights(kind)) is None:
                continue
            linked = {way: link_all(weights, way, gold) for way in COMBINATIONS}
            linked["chosen"] = best if kind == "posterior" else chosen_links(weights, gold)
            metrics |= {f"{kind} aer, {way}": found.scores.aer for way, found in linked.items()}
            kept = {"posterior": (*FIXED, "chosen"), "exact": ("chosen",)}.get(kind, ())
            for way in kept:
                counts.setdefault("exact" if kind == "exact" else way, []).append(linked[way].counts)
        links.append(linked_words(one, best.links, gold))
        curves.append(coverage_curve(one, best.links, gold))
        metrics |= {"precision": best.scores.precision, "recall": best.scores.recall}
        metrics |= certainty(links[-1], None if soft is None else soft[number].entropies)
        runs.append(metrics | {f"aer at {share:.0%}": rate_at(curves[-1], share) for share in COVERAGE})
        chosen.append(best)
    ways = list(dict.fromkeys(way for best in chosen for way in best.ways))
    return RowScores(runs, {way: torch.stack(rows) for way, rows in counts.items()}, ways, links[0], curves[0])
