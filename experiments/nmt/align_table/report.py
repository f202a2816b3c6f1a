"""Tables and pictures of the table of aligners."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.nmt.align_table.aligned import BASELINES
from experiments.nmt.align_table.config import AlignTable
from experiments.nmt.align_table.figures import coverage_figure, reliability_figure
from experiments.nmt.align_table.results import RowResult
from experiments.nmt.align_table.rows import ablation_row
from experiments.nmt.align_table.scores import COMBINATIONS, FIXED, bootstrap
from experiments.report.columns import Row
from experiments.report.figures import save
from experiments.report.report import Part

__all__ = ["report_parts", "summarised"]

_CHOSEN = "links in the chosen way"
_AGAINST = (
    "Error rate in percent with its 95 % interval over resampled gold sentences, mean over seeds, and differences to "
    "the baselines on the same sentences of each sample. Below 0 the row is better."
)
_CERTAINTY = {
    "ECE mean": "ece_mean",
    "ECE product": "ece_product",
    "ECE one way": "ece_forward",
    "AUROC probability": "auroc_probability",
    "AUROC interval": "auroc_width",
    "AUROC entropy": "auroc_entropy",
    "AUROC entropy of soft": "auroc_soft_entropy",
}

_PRIORS = (
    "Soft attention has no prior. That of Bayesian attention (weibull, lognormal, gamma) sees the source alone, is the "
    "same for every target word and aligns nothing. Hence the dashes."
)
_EXACT = (
    "The same networks as above: the posterior of the model is summed out exactly, instead of asking the inference "
    "network that it was trained with. Difference: of the links in the chosen way, to those by the inference network."
)


def report_parts(
    config: AlignTable, found: Mapping[str, RowResult], folder: Path, *, sentences: int, pairs: int
) -> list[Part]:
    """All parts of the report; the pictures are drawn into the folder."""
    networks = {name: one for name, one in found.items() if one.network}
    baselines = {name: one for name, one in found.items() if not one.network}
    parts = [
        Part(text=_protocol(config, sentences, pairs), rows=_error_rates(found, "posterior")),
        Part("Links by the prior, which does not see the word", _PRIORS, rows=_error_rates(networks, "prior")),
        Part("Links by the exact posterior", _EXACT, rows=_by_exact(networks)),
        *(
            Part(
                f"Against the baselines: {_CHOSEN if way == 'chosen' else way}",
                _AGAINST if way == "chosen" else "The same where no gold link chooses anything.",
                rows=_differences(networks, baselines, way),
            )
            for way in ("chosen", *FIXED)
        ),
    ]
    if config.ablations:
        names = [ablation_row(config, name) for name in config.ablations]
        shown = {name: networks[name] for name in (config.ablated, *names)}
        text = f"One option of {config.ablated} changed at a time; differences to it as above."
        parts.append(
            Part("Ablations", text, rows=_differences(shown, {config.ablated: networks[config.ablated]}, "chosen"))
        )
    parts.append(
        Part(
            "Is the uncertainty worth something?",
            "Of the written links: calibration of their probabilities, and how well a number tells wrong links from "
            "right ones (.5 is chance). AER of the most certain target words alone, the others left out with their "
            "gold links.",
            rows=_certainty(found, config),
        )
    )
    pictures = {
        "AER against coverage": coverage_figure(
            {name: one.curve for name, one in found.items()}, baselines=baselines, marked=config.coverage
        ),
        "Calibration of the written links": reliability_figure({name: one.links for name, one in found.items()}),
    }
    for title, figure in pictures.items():
        path = folder / f"{config.section}-{title.split()[0].lower()}.png"
        parts.append(Part(title, "The first seed.", picture=save(figure, path)))
    return [part for part in parts if part.rows or part.picture is not None]


def summarised(found: Mapping[str, RowResult]) -> str:
    """What the network that would be chosen without gold links makes of them, in a sentence; nothing without one."""
    agreement = {name: one.metrics["agreement"] for name, one in found.items() if one.network}
    if not agreement:
        return ""
    best = max(agreement, key=agreement.__getitem__)
    rates = []
    for way in FIXED:
        metric = f"posterior aer, {way}"
        others = {name: one.metrics[metric] for name, one in found.items() if not one.network}
        least = min(others, key=others.__getitem__, default=None)
        beside = "" if least is None else f" ({least}: {100 * others[least]:.1f}, the best baseline)"
        rates.append(f"{100 * found[best].metrics[metric]:.1f} by {way}{beside}")
    return (
        f"Of the networks {best} has the largest agreement of both directions on the validation text, "
        f"{100 * agreement[best]:.1f} %. Its alignment error rate in percent, for which no gold link chose anything: "
        f"{'; '.join(rates)}."
    )


def _protocol(config: AlignTable, sentences: int, pairs: int) -> str:
    seeds = "1 seed" if config.seeds == 1 else f"{config.seeds} seeds"
    text = "all pairs and on the test text, without links" if config.baselines_see_test else "all pairs"
    names = ", ".join(BASELINES[name] for name in config.baselines)
    baselines = f" {names} are trained on {text}, long pairs too." if config.baselines else ""
    return (
        f"AER in percent on {sentences} gold sentences, between words, mean over {seeds}. Every scheme is trained from "
        f"the beginning, once for each direction, on those of {pairs} pairs that have at most {config.max_words} "
        f"words.{baselines} Posterior: of the inference network "
        f"(categorical, dirichlet), else exact (marginal, hard), else the weights. Intersection, union and "
        f"grow-diag-final-and combine the most probable links of both directions; mbr are the links of minimum Bayes "
        f"risk by mean or geometric mean of both posteriors. Chosen: the way, among these and thresholds, best on "
        f"the other half of the gold sentences. Precision and recall are of the chosen links. Agreement: F1 in percent "
        f"between the links of both directions on the validation text, by which a network can be chosen without gold "
        f"links."
    )


def _percent(result: RowResult, metric: str, *, factor: float = 100, digits: int = 1) -> str:
    return f"{factor * result.metrics[metric]:.{digits}f}" if metric in result.metrics else "-"


def _error_rates(found: Mapping[str, RowResult], kind: str) -> list[Row]:
    if not any(f"{kind} aer, chosen" in result.metrics for result in found.values()):
        return []
    rows = []
    for name, result in found.items():
        cells = {way: _percent(result, f"{kind} aer, {way}") for way in (*COMBINATIONS, "chosen")}
        if kind == "posterior":
            cells |= {part: _percent(result, part) for part in ("precision", "recall")}
            cells |= {"agreement": _percent(result, "agreement")}
            cells |= {"perplexity": _percent(result, "val_ppl", factor=1, digits=2)}
            cells |= {"ms/step": _percent(result, "step_ms", factor=1, digits=0)}
            cells |= {"way": "; ".join(result.ways)}
        rows.append({"aligner": name} | cells)
    return rows


def _by_exact(networks: Mapping[str, RowResult]) -> list[Row]:
    rows = []
    for name, one in networks.items():
        if one.exact is not None:
            difference = bootstrap(one.exact, one.counts["chosen"]).minus("inference network", _CHOSEN)
            rows += [row | {"difference": difference} for row in _error_rates({name: one}, "exact")]
    return rows


def _differences(rows: Mapping[str, RowResult], baselines: Mapping[str, RowResult], way: str) -> list[Row]:
    return [
        {"aligner": name, "AER": bootstrap(one.counts[way]).percent}
        | {
            f"- {other}": ""
            if name == other
            else bootstrap(one.counts[way], baseline.counts[way]).minus(other, _CHOSEN if way == "chosen" else way)
            for other, baseline in baselines.items()
        }
        for name, one in rows.items()
    ]


def _certainty(found: Mapping[str, RowResult], config: AlignTable) -> list[Row]:
    return [
        {"aligner": name}
        | {head: _percent(one, metric, factor=1, digits=3) for head, metric in _CERTAINTY.items()}
        | {f"AER at {share:.0%}": _percent(one, f"aer at {share:.0%}") for share in config.coverage}
        for name, one in found.items()
    ]
