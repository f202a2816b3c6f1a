"""Rows of the table on pretraining."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from experiments.reporting.columns import Column, Row, Runs, columns_of
from experiments.reporting.statistics import summarise

__all__ = ["ACCURACY", "COLUMNS", "COMPARED", "CONTROL", "PERPLEXITY", "hybrid_rows", "score_rows"]

PERPLEXITY = Column("perplexity", "test_ppl", 2)
ACCURACY = Column("SST-2 %", "sst2_accuracy", 2, 100)
CONTROL = Column("SST-2 %, not pretrained", "scratch_accuracy", 2, 100)
COMPARED = (PERPLEXITY, Column("hidden pieces %", "test_accuracy", 2, 100), ACCURACY)
COLUMNS = (
    *COMPARED,
    CONTROL,
    Column("explained away %", "explained_away", 3, 100),
    Column("mass, 1st percentile", "key_mass_1_percent"),
)


def score_rows(runs: Mapping[str, Runs]) -> list[Row]:
    """Mean and standard deviation over seeds, and paired differences with 95 % intervals.

    A row ("normaliser, guide") is compared with the first normaliser under its own guide, and that one with the first
    row. The seeds of every row are in the same order.
    """
    rows, first, columns = list[Row](), next(iter(runs)), columns_of(runs, COLUMNS)
    for name, found in runs.items():
        alike = f"{first.partition(', ')[0]}, {name.partition(', ')[2]}"
        reference = "" if name == first else first if name == alike else alike
        cells = {"attention": name, "compared with": reference}
        for column in columns:
            cells[column.name] = column.cell(found)
            if column in COMPARED:
                difference = column.difference(found, runs[reference]).text() if reference else ""
                cells[f"{column.name}: difference"] = difference
        rows.append(cells)
    return rows


def hybrid_rows(runs: Mapping[str, Runs]) -> list[Row]:
    """Share of doubly normalised attention by layer, mean over heads (range of all heads and seeds)."""
    rows = []
    for name, found in runs.items():
        sites: dict[str, list[str]] = {}
        for metric in found[0]:
            if metric.startswith("hybrid_"):
                sites.setdefault(metric.removeprefix("hybrid_").rpartition("_")[0], []).append(metric)
        cells = {"attention": name}
        for site, heads in sites.items():
            shares = [[one[metric] for metric in heads] for one in found]
            lowest, highest = min(map(min, shares)), max(map(max, shares))
            cells[site] = f"{summarise(list(map(fmean, shares))).text(3)} ({lowest:.3f} to {highest:.3f})"
        if sites:
            rows.append(cells)
    return rows
