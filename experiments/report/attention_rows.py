"""Rows of tables that compare normalisers of attention under every guide; a row is named "normaliser, guide"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from experiments.report.columns import Column, Row, Runs, columns_of
from experiments.report.statistics import summarize

__all__ = ["compared_rows", "hybrid_rows"]


def compared_rows(runs: Mapping[str, Runs], shown: Sequence[Column], compared: Sequence[Column]) -> list[Row]:
    """Mean and standard deviation over seeds, and of some columns paired differences with 95 % intervals.

    A row is compared with the first normaliser under its own guide, and that one with the first
    row. The seeds of every row are in the same order.
    """
    rows, first, columns = list[Row](), next(iter(runs)), columns_of(runs, shown)
    for name, found in runs.items():
        alike = f"{first.partition(', ')[0]}, {name.partition(', ')[2]}"
        reference = "" if name == first else first if name == alike else alike
        cells: Row = {"attention": name, "compared with": reference}
        for column in columns:
            cells[column.name] = column.cell(found)
            if column in compared:
                difference = column.difference(found, runs[reference], reference) if reference else ""
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
        cells: Row = {"attention": name}
        for site, heads in sites.items():
            shares = [[one[metric] for metric in heads] for one in found]
            lowest, highest = min(map(min, shares)), max(map(max, shares))
            cells[site] = f"{summarize(list(map(fmean, shares)), 3)} ({lowest:.3f} to {highest:.3f})"
        if sites:
            rows.append(cells)
    return rows
