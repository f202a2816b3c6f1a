"""The tables of aligners: networks of both directions of translation beside classic aligners, on gold links."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from statistics import fmean
from textwrap import fill

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import UserError
from experiments.nmt.aligners import (
    COMBINATIONS,
    COVERAGE,
    FIXED,
    Aligned,
    RowScores,
    aligned_words,
    bootstrap,
    calibration_error,
    rate_at,
    score_row,
)
from experiments.nmt.alignments import PairAlignment, aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text, word_pairs
from experiments.nmt.em_aligners import EMModel, SentencePair, train_em
from experiments.nmt.model import load_trained
from experiments.report.columns import Column, Row, summary_rows
from experiments.report.figures import panels, reliability_panels, save
from experiments.report.report import Part
from experiments.report.statistics import Difference, Estimate
from experiments.sequence.alignments import predicts_by_posterior
from experiments.study import Finished
from pyro_attention.analysis import Alignment, GoldAlignment, read_pharaoh

__all__ = ["DIRECTIONS", "aligner_parts", "classic_aligners"]

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
    Column("precision", "precision", 1, 100, spread=False),
    Column("recall", "recall", 1, 100, spread=False),
    Column("agreement", "agreement", 1, 100, spread=False),
    Column("perplexity", "val_ppl", 2, spread=False),
    Column("ms/step", "step_ms", 0, spread=False),
)
_CERTAINTY = (
    *(Column(f"ECE {name}", f"ece_{metric}", spread=False)
      for name, metric in (("mean", "mean"), ("product", "product"), ("one way", "forward"))),
    *(Column(f"AUROC {name}", f"auroc_{metric}", spread=False)
      for name, metric in (("probability", "probability"), ("interval", "width"), ("entropy", "entropy"),
                           ("entropy of soft", "soft_entropy"))),
    *(Column(f"AER at {share:.0%}", f"aer at {share:.0%}", 1, 100, spread=False) for share in COVERAGE),
)  # fmt: skip


def _networks(finished: Finished, row: str, split: str) -> list[Aligned]:
    """Alignments of a split by the networks of every seed; of the test text also the exact ones."""
    return [
        Aligned(*(_network(finished.configs[row, direction, seed], split) for direction in DIRECTIONS))
        for seed in finished.seeds
    ]


def _network(config: TranslationConfig, split: str) -> list[PairAlignment]:
    trained = load_trained(Path(str(config.out)), device=config.device)
    text, count = load_text(config, split), config.num_samples
    pairs = aligned_pairs(trained, text, num_samples=count, exact=split == "test")
    # the prior of Bayesian attention sees the source alone, is the same for every target word and aligns nothing
    return [replace(pair, prior=None) for pair in pairs] if predicts_by_posterior(trained) else pairs


def classic_aligners(train: ParallelText, test: ParallelText) -> Iterator[tuple[str, Aligned]]:
    """Classic aligners, trained in both directions on both texts, as is their custom; eflomal where it is installed."""
    own = word_pairs(test)
    text = [*word_pairs(train), *own]
    for name, model in _BASELINES.items():
        forward, backward = train_em(text, model=model), train_em([(t, s) for s, t in text], model=model)
        weights = [(forward.link_probabilities(s, t), backward.link_probabilities(t, s)) for s, t in own]
        yield name, aligned_words(own, weights)
    if (program := shutil.which("eflomal-align")) is not None:
        yield "eflomal", _eflomal(program, text, own)


def _eflomal(program: str, text: Sequence[SentencePair], own: Sequence[SentencePair]) -> Aligned:
    """Links of eflomal as weights of 1; the last sentences of the text are those to align."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, file in enumerate(("source", "target")):
            (folder / file).write_text("".join(f"{' '.join(pair[side])}\n" for pair in text), encoding="utf-8")
        files = ["-s", "source", "-t", "target", "-f", "forward", "-r", "backward"]
        run = subprocess.run([program, *files], cwd=folder, capture_output=True, text=True, check=False)
        if run.returncode or not (folder / "backward").is_file():
            raise UserError(f"{program} failed: {' '.join(run.stderr.split())[-500:]}; mend or remove it")
        links = [list(read_pharaoh(folder / file).values())[-len(own) :] for file in DIRECTIONS]
    forward, backward = (
        [Alignment(gold.sure, *map(len, pair)).to_matrix().float() for gold, pair in zip(side, own, strict=True)]
        for side in links
    )
    return aligned_words(own, [(one, other.mT) for one, other in zip(forward, backward, strict=True)])


def _score_networks(finished: Finished, gold: Sequence[GoldAlignment]) -> dict[str, RowScores]:
    soft = _networks(finished, "soft", "test") if "soft" in finished.rows else None
    found = {}
    for row in finished.rows:
        found[row] = score_row(_networks(finished, row, "test"), gold, soft)
        for seed, metrics, val in zip(finished.seeds, found[row].runs, _networks(finished, row, "val"), strict=True):
            metrics["agreement"] = val.agreement
            for name in ("val_ppl", "step_ms"):
                metrics[name] = fmean(finished.metrics[row, direction, seed][name] for direction in DIRECTIONS)
    return found


def aligner_parts(finished: Finished, *, ablated: str = "") -> list[Part]:
    """All tables on alignments, of a study whose levels are both directions.

    Args:
        finished: The study.
        ablated: A row whose ablations, named after it, are compared with it.

    Raises:
        UserError: The text has too few gold links, or eflomal is installed and fails.
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
    protocol = _PROTOCOL.format(sentences=len(gold), pairs=len(train))
    parts = [
        Part("Alignment error rates", f"{protocol}\n\n{_summary(baselines, networks)}", _rates(found, "posterior")),
        Part("Links by the prior, which does not see the word", _PRIORS, _rates(networks, "prior")),
        Part("Links by the exact posterior", _EXACT, _exact(networks)),
        Part(f"Against the baselines: {_CHOSEN}", _AGAINST, _differences(networks, baselines, "chosen")),
        *(Part(f"Against the baselines: {way}", "The same where no gold link chooses anything.",
               _differences(networks, baselines, way)) for way in FIXED),
    ]  # fmt: skip
    shown = {name: one for name, one in networks.items() if name.partition(",")[0] == ablated}
    if len(shown) > 1:
        text = f"One option of {ablated} changed at a time; differences to it as above."
        parts.append(Part("Ablations", text, _differences(shown, {ablated: shown[ablated]}, "chosen")))
    runs = {name: one.runs for name, one in found.items()}
    parts.append(Part("Is the uncertainty worth something?", _UNCERTAINTY, summary_rows("aligner", runs, _CERTAINTY)))
    pictures = {
        "AER against coverage": _coverage_figure(found, baselines),
        "Calibration of the written links": _reliability_figure(found),
    }
    for title, figure in pictures.items():
        path = finished.pictures / f"{finished.name}-{title.split()[0].lower()}.png"
        parts.append(Part(title, "The first seed.", picture=save(figure, path)))
    return [part for part in parts if part.rows or part.picture is not None]


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


def _rates(found: Mapping[str, RowScores], kind: str) -> list[Row]:
    columns = [Column(way, f"{kind} aer, {way}", 1, 100, spread=False) for way in (*COMBINATIONS, "chosen")]
    runs = {name: one.runs for name, one in found.items() if f"{kind} aer, chosen" in one.runs[0]}
    if kind != "posterior":
        return summary_rows("aligner", runs, columns)
    rows = summary_rows("aligner", runs, [*columns, *_MORE])
    return [row | {"way": "; ".join(found[row["aligner"]].ways)} for row in rows]


def _exact(networks: Mapping[str, RowScores]) -> list[Row]:
    return [
        row | {"difference": _difference(one.counts["exact"], one.counts["chosen"], "inference network", _CHOSEN)}
        for row in _rates(networks, "exact")
        for one in [networks[row["aligner"]]]
    ]


def _difference(counts: Tensor, baseline: Tensor, against: str, way: str) -> Difference:
    return Difference(
        *bootstrap(counts, baseline), digits=1, metric=f"AER, {way}", against=against, better="lower", over="items"
    )


def _differences(rows: Mapping[str, RowScores], baselines: Mapping[str, RowScores], way: str) -> list[Row]:
    called = _CHOSEN if way == "chosen" else way
    found = []
    for name, one in rows.items():
        rate, low, high = bootstrap(one.counts[way])
        cells: Row = {"aligner": name, "AER": Estimate(rate, digits=1, low=low, high=high)}
        for other, baseline in baselines.items():
            own = name == other
            cells[f"- {other}"] = "" if own else _difference(one.counts[way], baseline.counts[way], other, called)
        found.append(cells)
    return found


def _coverage_figure(found: Mapping[str, RowScores], baselines: Collection[str]) -> Figure:
    """Error rate against the share of the target words that are kept, one line a row; baselines are grey."""
    figure, axes = panels(1, 1, size=(8.2, 4.4))
    axis = axes[0, 0]
    colors = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink")
    looks, greys = cycle(product(("-", "--", ":"), colors)), cycle(product(("-", "--", "-.", ":"), ("0.3",)))
    for name, one in found.items():
        style, color = next(greys) if name in baselines else next(looks)
        coverage = torch.arange(1, len(one.curve) + 1) / len(one.curve)
        some = coverage >= 0.1  # few words, and a jumpy line
        shares, rates = 100 * coverage[some].numpy(), 100 * one.curve[some].numpy()
        axis.plot(shares, rates, label=name, linewidth=1.4, color=color, linestyle=style)
        for share in COVERAGE:
            axis.plot(100 * share, 100 * rate_at(one.curve, share), "o", markersize=4, color=color)
    axis.set(xlabel="target words kept, most certain first, %", ylabel="alignment error rate, %", xlim=(10, 101))
    axis.set_ylim(bottom=0)
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return figure


def _reliability_figure(found: Mapping[str, RowScores]) -> Figure:
    """Share of gold links among written links against their probability, one panel a row, with its ECE."""
    shown = {}
    for name, one in found.items():
        links = one.links
        error = f"\nECE {calibration_error(links, 'mean'):.3f}" if len(links.right) else "\nno links"
        shown[fill(name, 30) + error] = (links.mean.clamp(0, 1), links.right)
    return reliability_panels(
        shown, confidence="probability of a link, mean of both directions", right="share of gold links"
    )
