"""Aligners on hand-made links: networks of both directions beside classic ones, and what their certainty is worth."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt.align import PairAlignment, aligned_pairs, combine_pairs, combine_weights, link_both
from experiments.nmt.config import ProbabilityCombineName, TranslationConfig
from experiments.nmt.em_aligners import EMModel, SentencePair, train_em
from experiments.nmt.model import load_text, load_trained, word_pairs
from experiments.report.report import Part
from experiments.report.statistics import Column, Difference, Estimate, Row, Runs, summary_rows
from experiments.sequence.alignments import predicts_by_posterior
from experiments.study import Finished
from pyro_attention.aligner import Aligner, cross_fit
from pyro_attention.analysis import (
    Alignment,
    AlignmentScores,
    GoldAlignment,
    alignment_error_rate,
    hard_alignment,
    read_pharaoh,
)
from pyro_attention.analysis.inputs import equal_tailed
from pyro_attention.families.alignment import CategoricalAlignment

RESAMPLES = 5000
COVERAGE = (0.5, 0.7, 0.9)
BINS, LEVEL = 15, 0.9
Weights = tuple[Tensor, Tensor]  # of a pair in both directions, [M, N] and [N, M]
Linker = Callable[[Tensor, Tensor], Alignment]
Align = Callable[[Sequence[SentencePair], Sequence[SentencePair]], "Aligned"]  # all pairs, and those to align


@dataclass(frozen=True)
class Aligned:
    """Alignments of the same sentence pairs in both directions; those of ``backward`` have the sides swapped."""

    forward: Sequence[PairAlignment]
    backward: Sequence[PairAlignment]
    certain: Sequence[Tensor] | None = None  # how sure each target word's link is, where weights do not tell it

    def weights(self, kind: str) -> list[Weights]:
        """Mean weights of each pair: "posterior", "prior" or "exact"; none where some pair has none."""
        pairs = list(zip(self.forward, self.backward, strict=True))
        if kind == "posterior":
            return [(one.posterior.mean(0), other.posterior.mean(0)) for one, other in pairs]
        found = [(getattr(one, kind), getattr(other, kind)) for one, other in pairs]
        return found if all(weights is not None for pair in found for weights in pair) else []

    @property
    def entropies(self) -> list[Tensor]:
        """Entropy in nats of the source distribution of every target word, ``[M]`` of each pair."""
        return [torch.special.entr(one.posterior.mean(0).double()).sum(-1) for one in self.forward]

    @property
    def agreement(self) -> float:
        """F1 between the links of one direction and of the other: every word with its most probable one."""
        turned = [GoldAlignment(pair.links.transposed().links) for pair in self.backward]
        return alignment_error_rate([pair.links for pair in self.forward], turned).f1

    @cached_property
    def combined(self) -> list[PairAlignment]:
        """The mean of both directions: the probability of each link, with samples where there are any."""
        return [combine_pairs(*pair, combine="mean") for pair in zip(self.forward, self.backward, strict=True)]


def aligned_words(
    pairs: Sequence[SentencePair], weights: Sequence[Weights], certain: Sequence[Tensor] | None = None
) -> Aligned:
    """Weights ``[M, N]`` and ``[N, M]`` of every pair as alignments of its words."""
    forward, backward = list[PairAlignment](), list[PairAlignment]()
    for (source, target), (one, other) in zip(pairs, weights, strict=True):
        forward.append(PairAlignment(list(source), list(target), None, one.unsqueeze(0)))
        backward.append(PairAlignment(list(target), list(source), None, other.unsqueeze(0)))
    return Aligned(forward, backward, certain)


def pyro_align(
    text: Sequence[SentencePair],
    own: Sequence[SentencePair],
    *,
    held_out: bool = False,
    encoder: Path | None = None,
    parts: int = 1,
) -> Aligned:
    """Alignments of the pairs to align, which stand last in the text, by the library's aligner; see ``Align``.

    With several parts the whole text is cross-fitted.
    """
    if parts > 1:
        pairs = cross_fit(*zip(*text, strict=True), parts=parts, encoder=encoder)[-len(own) :]
    else:
        aligner = Aligner.fit(*zip(*(text[: -len(own)] if held_out else text), strict=True))
        pairs = aligner(*zip(*own, strict=True), encoder=encoder)
    return aligned_words(own, [(pair.links, pair.links.mT) for pair in pairs], [pair.certainty for pair in pairs])


# Error rates

COMBINATIONS: dict[str, Linker] = {
    "source to target": lambda forward, _: hard_alignment(forward),
    "target to source": lambda _, backward: hard_alignment(backward).transposed(),
    "intersection": partial(link_both, combine="intersection"),
    "union": partial(link_both, combine="union"),
    "grow-diag-final-and": partial(link_both, combine="grow-diag-final-and"),
    "mean, mbr": partial(link_both, combine="mean"),
    "geometric, mbr": partial(link_both, combine="geometric"),
}
FIXED = ("grow-diag-final-and", "geometric, mbr")  # ways that have nothing to be chosen by gold links
_THRESHOLDS: dict[ProbabilityCombineName, tuple[float, ...]] = {
    "mean": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7),
    "product": (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
}
WAYS: dict[str, Linker] = COMBINATIONS | {
    f"{combine} > {threshold}": partial(link_both, combine=combine, threshold=threshold)
    for combine, thresholds in _THRESHOLDS.items()
    for threshold in thresholds
}


@dataclass(frozen=True)
class Linked:
    """Links of every gold sentence in one way, or in that which was best for other sentences."""

    links: list[Alignment]
    counts: Tensor  # predicted links, sure ones, predicted sure and predicted possible ones, int64 [sentences, 4]
    ways: tuple[str, ...]  # the way; or what was chosen for the even sentences, on the odd ones, and vice versa

    @property
    def scores(self) -> AlignmentScores:
        """Scores over all sentences."""
        return _scores(self.counts)


def _scores(counts: Tensor) -> AlignmentScores:
    return AlignmentScores(len(counts), *counts.sum(0).tolist())


def link_all(weights: Sequence[Weights], way: str, gold: Sequence[GoldAlignment]) -> Linked:
    """Links of all sentences in one way."""
    links = [WAYS[way](*pair) for pair in weights]
    rows = [alignment_error_rate([found], [truth]) for found, truth in zip(links, gold, strict=True)]
    counts = [(one.num_predicted, one.num_sure, one.num_predicted_sure, one.num_predicted_possible) for one in rows]
    return Linked(links, torch.tensor(counts), (way,))


def chosen_links(weights: Sequence[Weights], gold: Sequence[GoldAlignment]) -> Linked:
    """Links of the way of linking that has the lowest error rate on the sentences of the other half.

    So nothing is chosen on the sentences it is scored on. Halves are the even and the odd sentences, of two at least.
    """
    found = {way: link_all(weights, way, gold) for way in WAYS}
    best = [min(found, key=lambda way: _scores(found[way].counts[1 - half :: 2]).aer) for half in (0, 1)]
    links = [found[best[place % 2]].links[place] for place in range(len(gold))]
    counts = [found[best[place % 2]].counts[place] for place in range(len(gold))]
    return Linked(links, torch.stack(counts), tuple(best))


def bootstrap(counts: Tensor, baseline: Tensor | None = None) -> tuple[float, float, float]:
    """Mean error rate over seeds in percent, or its difference to a baseline's, and the ends of its 95 % interval.

    The interval is over resampled sentences, ``[seeds, sentences, 4]`` as of ``Linked``. Both rates are computed on
    the same sentences of each sample, so what makes sentences hard for both cancels out. The sentences are drawn with a
    seed of their own: the same counts give the same interval.
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


def linked_words(
    aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment], soft: Sequence[Tensor] | None = None
) -> dict[str, Tensor]:
    """What is known of the written links of all sentences, float64 ``[links]`` each, in one order.

    ``right`` is 1 of a gold link, at least a possible one; ``mean``, ``product`` and ``forward`` are its probability by
    both directions or by one alone, ``width`` that of the mean's credible interval, where there are samples,
    ``entropy`` that of the source distribution of its target word, and ``soft_entropy`` that of ``soft`` attention.
    """
    parts, sampled = list[dict[str, Tensor]](), len(aligned.combined[0].posterior) > 1
    weights, entropies = aligned.weights("posterior"), aligned.entropies
    for number, (found, truth, pair) in enumerate(zip(links, gold, aligned.combined, strict=True)):
        mask, (forward, backward) = found.to_matrix(), weights[number]
        tables = {"right": replace(found, links=truth.possible).to_matrix(), "mean": pair.posterior.mean(0)}
        tables |= {"forward": forward, "product": combine_weights(forward, backward, combine="product")}
        tables["entropy"] = entropies[number].unsqueeze(-1).expand_as(mask)
        if sampled:
            low, high = equal_tailed(pair.posterior, LEVEL)[1:]
            tables["width"] = high - low
        if soft is not None:
            tables["soft_entropy"] = soft[number].unsqueeze(-1).expand_as(mask)
        parts.append({name: table[mask].double() for name, table in tables.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def certainty(links: Mapping[str, Tensor]) -> dict[str, float]:
    """Calibration of the probabilities of links, and areas under the ROC curve of telling wrong links from right ones.

    Areas need right and wrong links.
    """
    wrong = 1 - links["right"]
    if not len(wrong):
        return {}
    found = {f"ece_{name}": calibration_error(links, name) for name in ("mean", "product", "forward")}
    if wrong.all() or not wrong.any():
        return found
    uncertainty = {"probability": 1 - links["mean"]}
    uncertainty |= {name: links[name] for name in ("width", "entropy", "soft_entropy") if name in links}
    return found | {f"auroc_{name}": float(roc_auc_score(wrong, values)) for name, values in uncertainty.items()}


def calibration_error(links: Mapping[str, Tensor], name: str) -> float:
    """Expected calibration error of one of the probabilities of links."""
    return float(binary_calibration_error(links[name].clamp(0, 1).float(), links["right"].long(), n_bins=BINS))


def coverage_curve(aligned: Aligned, links: Sequence[Alignment], gold: Sequence[GoldAlignment]) -> Tensor:
    """Error rate of the links of the most certain target words, for every number of them, float64 ``[words]``.

    A word's certainty is the largest probability of a link of its, by the mean of both directions, unless the aligner
    tells another. A word left out counts in no way, with its predicted and gold links, so an aligner does not lose
    recall by saying that it does not know.
    """
    certain, right, total = list[Tensor](), list[Tensor](), list[Tensor]()
    for number, (pair, found, truth) in enumerate(zip(aligned.combined, links, gold, strict=True)):
        own = pair.posterior.mean(0).amax(-1) if aligned.certain is None else aligned.certain[number]
        certain.append(own.double())
        written = found.to_matrix()
        sure, possible = (replace(found, links=part).to_matrix() for part in (truth.sure, truth.possible))
        right.append((written & sure).sum(-1) + (written & possible).sum(-1))
        total.append(written.sum(-1) + sure.sum(-1))
    order = torch.cat(certain).argsort(descending=True, stable=True)
    rights, totals = (torch.cat(part)[order].cumsum(0).double() for part in (right, total))
    return torch.where(totals > 0, 1 - rights / totals.clamp_min(1), 0.0)


def rate_at(curve: Tensor, coverage: float) -> float:
    """Error rate at the least number of words that reaches a coverage in (0, 1]."""
    # 0.07 * 100 is 7.000000000000001, and means 7
    return curve[math.ceil(coverage * len(curve) * (1 - 1e-12)) - 1].item()


class RowScores(NamedTuple):
    """What is said of one row."""

    runs: list[dict[str, float]]  # metrics of every seed
    counts: dict[tuple[str, str], Tensor]  # of links, [seeds, sentences, 4], by kind of weights and way, or "chosen"
    ways: list[str]  # how the chosen links of the posterior were chosen


def score_row(
    aligned: Sequence[Aligned], gold: Sequence[GoldAlignment], soft: Sequence[Aligned] | None = None
) -> RowScores:
    """Score the alignments of every seed; with those of soft attention its entropy is compared."""
    runs, ways = list[dict[str, float]](), dict[str, None]()
    counts = defaultdict[tuple[str, str], list[Tensor]](list)
    for number, one in enumerate(aligned):
        metrics, best = dict[str, float](), chosen_links(one.weights("posterior"), gold)
        for kind in ("posterior", "prior", "exact"):
            if not (weights := one.weights(kind)):
                continue
            linked = {way: link_all(weights, way, gold) for way in COMBINATIONS}
            linked["chosen"] = best if kind == "posterior" else chosen_links(weights, gold)
            for way, found in linked.items():
                metrics[f"{kind} aer, {way}"] = found.scores.aer
                counts[kind, way].append(found.counts)
        curve = coverage_curve(one, best.links, gold)
        metrics |= {"precision": best.scores.precision, "recall": best.scores.recall}
        metrics |= certainty(linked_words(one, best.links, gold, None if soft is None else soft[number].entropies))
        runs.append(metrics | {f"aer at {share:.0%}": rate_at(curve, share) for share in COVERAGE})
        ways |= dict.fromkeys(best.ways)
    return RowScores(runs, {place: torch.stack(rows) for place, rows in counts.items()}, [*ways])


# Tables

DIRECTIONS = ("forward", "backward")
_LONGEST = 200  # words of a sentence that the baselines are trained on; Model 2 has a table for every length
_BASELINES: dict[str, EMModel] = {
    "IBM Model 1": "ibm1",
    "IBM Model 2": "ibm2",
    "Model 2 with a diagonal prior (as fast_align)": "diagonal",
}
_CHOSEN = "links in the chosen way"
_PROTOCOL = (
    "AER in percent on {sentences} gold sentences, between words, mean over seeds. The baselines are trained on all "
    "{pairs} pairs, long ones too, and on the test text, without links, as is their custom. Posterior: of the "
    "inference network (categorical, dirichlet), else exact (marginal, hard), else the weights. Intersection, union "
    "and grow-diag-final-and combine the most probable links of both directions; mbr are the links of minimum Bayes "
    "risk by mean or geometric mean of both posteriors. Chosen: the way, among these and thresholds, best on the other "
    "half of the gold sentences. Precision and recall are of the chosen links. Agreement: F1 in percent between the "
    "links of both directions on the validation text, by which a network can be chosen without gold links."
)
_PRIORS = (
    "Soft attention has no prior. That of Bayesian attention (weibull, lognormal, gamma) sees the source alone, is the "
    "same for every target word and aligns nothing. Hence they are not shown."
)
_EXACT = (
    "The same networks as above: the posterior of the model is summed out exactly, instead of asking the inference "
    "network that it was trained with. Difference: of the links in the chosen way, to those by the inference network."
)
_AGAINST = (
    "Error rate in percent with its 95 % interval over resampled gold sentences, mean over seeds, and differences to "
    "the baselines on the same sentences of each sample. Below 0 the row is better."
)
_UNCERTAINTY = (
    "Of the written links: calibration of their probabilities (mean and product of both posteriors, one way alone), "
    "and area under the ROC curve of telling wrong links from right ones (.5 is chance) by 1 - probability, by the "
    "width of its 90 % credible interval, by the entropy of the posterior of the target word, and by that of soft "
    "attention. AER of the most certain target words alone, the others left out with their gold links."
)
_MORE = (
    *(Column(name, name, 1, 100, spread=False) for name in ("precision", "recall", "agreement")),
    Column("perplexity", "val_ppl", 2, spread=False),
    Column("ms/step", "step_ms", 0, spread=False),
)
_CERTAINTY = (
    Column("ECE mean", "ece_mean", spread=False),
    Column("ECE product", "ece_product", spread=False),
    Column("ECE one way", "ece_forward", spread=False),
    Column("AUROC probability", "auroc_probability", spread=False),
    Column("AUROC interval", "auroc_width", spread=False),
    Column("AUROC entropy", "auroc_entropy", spread=False),
    Column("AUROC entropy of soft", "auroc_soft_entropy", spread=False),
    *(Column(f"AER at {share:.0%}", f"aer at {share:.0%}", 1, 100, spread=False) for share in COVERAGE),
)


def _network(config: TranslationConfig) -> dict[str, list[PairAlignment]]:
    """Alignments of validation and test text by a trained network; of the test text also the exact ones."""
    trained, found = load_trained(Path(str(config.out)), device=config.device), {}
    for split in ("val", "test"):
        text, count = load_text(config, split), config.num_samples
        exact = split == "test" and trained.family.kind == CategoricalAlignment.kind
        pairs = aligned_pairs(trained, text, num_samples=count, exact=exact)
        # the prior of Bayesian attention sees the source alone, is the same for every target word and aligns nothing
        found[split] = [replace(pair, prior=None) for pair in pairs] if predicts_by_posterior(trained) else pairs
    return found


def classics() -> dict[str, Align]:
    """Classic aligners by name, trained in both directions on all pairs; eflomal where it is installed."""
    found: dict[str, Align] = {name: partial(_align_em, model) for name, model in _BASELINES.items()}
    if (program := shutil.which("eflomal-align")) is not None:
        found["eflomal"] = partial(eflomal, program)
    return found


def classic_aligners(train: ParallelText, test: ParallelText) -> Iterator[tuple[str, Aligned]]:
    """Alignments of a text by the classic aligners, which are trained on both texts, as is their custom."""
    own = word_pairs(test)
    text = [*word_pairs(train), *own]
    yield from ((name, align(text, own)) for name, align in classics().items())


def _align_em(model: EMModel, text: Sequence[SentencePair], own: Sequence[SentencePair]) -> Aligned:
    forward, backward = train_em(text, model=model), train_em([(t, s) for s, t in text], model=model)
    weights = [(forward.link_probabilities(s, t), backward.link_probabilities(t, s)) for s, t in own]
    return aligned_words(own, weights)


def eflomal(program: str, text: Sequence[SentencePair], own: Sequence[SentencePair], *, samplers: int = 3) -> Aligned:
    """Links of eflomal as weights of 1; the last sentences of the text are those to align."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, file in enumerate(("source", "target")):
            (folder / file).write_text("".join(f"{' '.join(pair[side])}\n" for pair in text), encoding="utf-8")
        files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "backward", "--n-samplers", str(samplers)]
        subprocess.run([program, *files], cwd=folder, check=True)
        links = [list(read_pharaoh(folder / file).values())[-len(own) :] for file in DIRECTIONS]
    forward, backward = (
        [Alignment(gold.sure, *map(len, pair)).to_matrix().float() for gold, pair in zip(side, own, strict=True)]
        for side in links
    )
    return aligned_words(own, [(one, other.mT) for one, other in zip(forward, backward, strict=True)])


def _score_networks(finished: Finished, gold: Sequence[GoldAlignment]) -> dict[str, RowScores]:
    aligned = dict[str, list[Aligned]]()
    agreements = dict[str, list[float]]()
    for row in finished.rows:
        both = [[_network(finished.configs[row, way, seed]) for way in DIRECTIONS] for seed in finished.seeds]
        aligned[row] = [Aligned(one["test"], other["test"]) for one, other in both]
        agreements[row] = [Aligned(one["val"], other["val"]).agreement for one, other in both]
    found = {row: score_row(one, gold, aligned.get("soft")) for row, one in aligned.items()}
    for row, scores in found.items():
        for seed, metrics, agreed in zip(finished.seeds, scores.runs, agreements[row], strict=True):
            metrics["agreement"] = agreed
            for name in ("val_ppl", "step_ms"):
                metrics[name] = fmean(finished.metrics[row, way, seed][name] for way in DIRECTIONS)
    return found


def aligner_parts(finished: Finished) -> list[Part]:
    """All tables on alignments, of a study whose levels are both directions; "ROW, OPTION VALUE" are ablations of ROW.

    Raises:
        UserError: The text has too few gold links.
    """
    if tuple(finished.study.levels) != DIRECTIONS:
        return []
    config = finished.configs[finished.rows[0], "forward", finished.seeds[0]]
    train, test = load_text(replace(config, max_words=_LONGEST), "train"), load_text(config, "test")
    if (gold := test.gold) is None or len(gold) < 2:
        raise UserError(f"{config.dataset} has gold links of {len(gold or ())} test pairs, expected 2 at least")
    print("Training the baselines, and scoring ...", flush=True)
    baselines = {name: score_row([aligned], gold) for name, aligned in classic_aligners(train, test)}
    networks = _score_networks(finished, gold)
    found = baselines | networks
    runs = {name: one.runs for name, one in found.items()}
    protocol = _PROTOCOL.format(sentences=len(gold), pairs=len(train))
    rates = [row | {"way": "; ".join(found[row["aligner"]].ways)} for row in _rates(runs, "posterior", _MORE)]
    exact = [
        row | {"difference": _difference(one, "exact", one, "posterior", "chosen", "inference network")}
        for row in _rates(runs, "exact")
        for one in [networks[row["aligner"]]]
    ]
    parts = [
        Part("Alignment error rates", f"{protocol}\n\n{_summary(baselines, networks)}", rates),
        Part("Links by the prior, which does not see the word", _PRIORS, _rates(runs, "prior")),
        Part("Links by the exact posterior", _EXACT, exact),
        Part(f"Against the baselines: {_CHOSEN}", _AGAINST, _differences(networks, baselines, "chosen")),
        *(Part(f"Against the baselines: {way}", "The same where no gold link chooses anything.",
               _differences(networks, baselines, way)) for way in FIXED),
    ]  # fmt: skip
    for ablated in {name.partition(",")[0]: None for name in networks if "," in name}:
        shown = {name: one for name, one in networks.items() if name.partition(",")[0] == ablated}
        text = f"One option of {ablated} changed at a time; differences to it as above."
        parts.append(Part("Ablations", text, _differences(shown, {ablated: shown[ablated]}, "chosen")))
    parts.append(Part("Is the uncertainty worth something?", _UNCERTAINTY, summary_rows("aligner", runs, _CERTAINTY)))
    return [part for part in parts if part.rows]


def _summary(baselines: Mapping[str, RowScores], networks: Mapping[str, RowScores]) -> str:
    """What the network that would be chosen without gold links makes of them."""

    def mean(row: RowScores, metric: str) -> float:
        return 100 * fmean(run[metric] for run in row.runs)

    best = max(networks, key=lambda name: mean(networks[name], "agreement"))
    rates = []
    for way in FIXED:
        others = {name: mean(one, f"posterior aer, {way}") for name, one in baselines.items()}
        least = min(others, key=others.__getitem__)
        ours = mean(networks[best], f"posterior aer, {way}")
        rates.append(f"{ours:.1f} by {way} ({least}: {others[least]:.1f}, the best baseline)")
    return (
        f"Of the networks {best} has the largest agreement of both directions on the validation text, "
        f"{mean(networks[best], 'agreement'):.1f} %. Its alignment error rate in percent, for which no gold link chose "
        f"anything: {'; '.join(rates)}."
    )


def _rates(runs: Mapping[str, Runs], kind: str, more: Sequence[Column] = ()) -> list[Row]:
    columns = [Column(way, f"{kind} aer, {way}", 1, 100, spread=False) for way in (*COMBINATIONS, "chosen")]
    some = {name: one for name, one in runs.items() if f"{kind} aer, chosen" in one[0]}
    return summary_rows("aligner", some, [*columns, *more])


def _difference(one: RowScores, kind: str, other: RowScores, its: str, way: str, against: str) -> Difference:
    found, metric = bootstrap(one.counts[kind, way], other.counts[its, way]), _CHOSEN if way == "chosen" else way
    return Difference(*found, digits=1, metric=f"AER, {metric}", against=against, better="lower", over="items")


def _differences(rows: Mapping[str, RowScores], baselines: Mapping[str, RowScores], way: str) -> list[Row]:
    found = []
    for name, one in rows.items():
        rate, low, high = bootstrap(one.counts["posterior", way])
        cells: Row = {"aligner": name, "AER": Estimate(rate, digits=1, low=low, high=high)}
        for other, baseline in baselines.items():
            difference = _difference(one, "posterior", baseline, "posterior", way, other)
            cells[f"- {other}"] = "" if name == other else difference
        found.append(cells)
    return found
