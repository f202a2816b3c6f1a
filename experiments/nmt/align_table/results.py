"""All that is said of one row of the table: error rates, uncertainty, and what pictures show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from experiments.nmt.align_table.aligned import Aligned
from experiments.nmt.align_table.certainty import (
    CoverageCurve,
    Links,
    certainty,
    coverage_curve,
    linked_words,
)
from experiments.nmt.align_table.scores import COMBINATIONS, FIXED, Chosen, chosen_links, link_all, scores_of
from pyro_attention.analysis import GoldAlignment

__all__ = ["KINDS", "RowResult", "row_result"]

KINDS = ("posterior", "prior", "exact")  # exact: where the posterior is of an inference network


@dataclass(frozen=True)
class RowResult:
    """Results of one row.

    Attributes:
        metrics: Means over seeds, by name.
        counts: Counts of the posterior's links, ``[seeds, sentences, 4]``, by the way of FIXED, or "chosen".
        exact: Counts of the chosen links by the exact posterior, where the posterior is of an inference network.
        ways: How the chosen ones were chosen, each different way once.
        links: The written links of the first seed.
        curve: The coverage curve of the first seed.
        network: Whether it is a network, and no baseline.
    """

    metrics: dict[str, float]
    counts: dict[str, Tensor]
    exact: Tensor | None
    ways: list[str]
    links: Links
    curve: CoverageCurve
    network: bool


def row_result(
    aligned: Sequence[Aligned],
    gold: Sequence[GoldAlignment],
    *,
    coverage: Sequence[float],
    network: bool,
    soft: Sequence[Aligned] | None = None,
) -> RowResult:
    """Score the alignments of every seed.

    Args:
        aligned: One for each seed.
        gold: The gold links.
        coverage: Shares of the target words that are scored alone.
        network: Whether it is a network.
        soft: Alignments of soft attention for each seed, whose entropy is compared.
    """
    seeds, chosen, links, curves = list[dict[str, float]](), list[Chosen](), list[Links](), list[CoverageCurve]()
    counts, exact = dict[str, list[Tensor]](), list[Tensor]()
    for number, one in enumerate(aligned):
        rates, by_kind = _error_rates(one, gold)
        best = by_kind["posterior"]
        written = linked_words(one, best.links, gold)
        curve = coverage_curve(one, best.links, gold)
        rates |= certainty(written, None if soft is None else soft[number].entropies)
        rates |= {f"aer at {share:.0%}": curve.aer_at(share) for share in coverage}
        seeds.append(rates)
        chosen.append(best)
        for way in FIXED:
            counts.setdefault(way, []).append(link_all(one.posterior, COMBINATIONS[way], gold).counts)
        counts.setdefault("chosen", []).append(best.counts)
        if "exact" in by_kind:
            exact.append(by_kind["exact"].counts)
        links.append(written)
        curves.append(curve)
    names = dict.fromkeys(name for one in seeds for name in one)
    metrics = {name: fmean(one[name] for one in seeds if name in one) for name in names}
    ways = list(dict.fromkeys(way for best in chosen for way in best.ways))
    by_way = {way: torch.stack(rows) for way, rows in counts.items()}
    return RowResult(metrics, by_way, torch.stack(exact) if exact else None, ways, links[0], curves[0], network)


def _error_rates(aligned: Aligned, gold: Sequence[GoldAlignment]) -> tuple[dict[str, float], dict[str, Chosen]]:
    """Error rates of prior and posterior in every way, and their chosen links."""
    rates: dict[str, float] = {}
    best: dict[str, Chosen] = {}
    for kind in KINDS:
        weights = aligned.weights(kind)
        if weights is None:
            continue
        for name, linker in COMBINATIONS.items():
            rates[f"{kind} aer, {name}"] = scores_of(link_all(weights, linker, gold).counts).aer
        best[kind] = chosen_links(weights, gold)
        rates[f"{kind} aer, chosen"] = scores_of(best[kind].counts).aer
    scores = scores_of(best["posterior"].counts)
    return rates | {"precision": scores.precision, "recall": scores.recall}, best
