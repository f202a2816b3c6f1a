"""Rows of the table on pretraining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.reporting.statistics import paired_difference, summarise

__all__ = ["COLUMNS", "Column", "Key", "Runs", "hybrid_rows", "score_rows"]

Key = tuple[str, int]
"""Row ("normaliser, guide") and seed."""
Runs = Mapping[Key, Mapping[str, float]]


class Column(NamedTuple):
    """One score: its metric, how it is shown, and whether differences between rows are shown too."""

    metric: str
    digits: int
    factor: float = 1.0
    compared: bool = False

    def values(self, metrics: Runs, row: str) -> list[float]:
        """One number a seed."""
        return [self.factor * found[self.metric] for (name, _), found in metrics.items() if name == row]


COLUMNS = {
    "perplexity": Column("test_ppl", 2, compared=True),
    "hidden pieces %": Column("test_accuracy", 2, 100, compared=True),
    "SST-2 %": Column("sst2_accuracy", 2, 100, compared=True),
    "SST-2 %, not pretrained": Column("scratch_accuracy", 2, 100),
    "explained away %": Column("explained_away", 3, 100),
    "mass, 1st percentile": Column("key_mass_1_percent", 3),
}


def score_rows(metrics: Runs) -> list[dict[str, str]]:
    """Mean and standard deviation over seeds, and paired differences with 95 % intervals.

    A row is compared with the first normaliser under its own guide, and that one with the first row.

    Args:
        metrics: Metrics by (row, seed), the seeds of every row in the same order.
    """
    names = list(dict.fromkeys(row for row, _ in metrics))
    known = metrics[next(iter(metrics))]
    columns = {title: column for title, column in COLUMNS.items() if column.metric in known}
    rows = []
    for name in names:
        reference = _reference(name, names)
        cells = {"attention": name, "compared with": "" if reference is None else reference}
        for title, column in columns.items():
            values = column.values(metrics, name)
            cells[title] = _mean(values, column.digits)
            if column.compared:
                others = None if reference is None else column.values(metrics, reference)
                cells[f"{title}: difference"] = "" if others is None else _difference(values, others)
        rows.append(cells)
    return rows


def _reference(name: str, names: Sequence[str]) -> str | None:
    """Row that this one is compared with; None for the first."""
    alike = f"{names[0].partition(', ')[0]}, {name.partition(', ')[2]}"
    found = names[0] if name == alike else alike
    return None if name == names[0] else found


def hybrid_rows(metrics: Runs) -> list[dict[str, str]]:
    """Share of doubly normalised attention by layer, mean over heads (range of all heads and seeds)."""
    rows = []
    for name in dict.fromkeys(row for row, _ in metrics):
        runs = [found for (row, _), found in metrics.items() if row == name]
        sites: dict[str, list[str]] = {}
        for metric in runs[0]:
            if metric.startswith("hybrid_"):
                sites.setdefault(metric.removeprefix("hybrid_").rpartition("_")[0], []).append(metric)
        if not sites:
            continue
        cells = {"attention": name}
        for site, heads in sites.items():
            shares = [[found[metric] for metric in heads] for found in runs]
            mean = _mean([sum(row) / len(row) for row in shares], 3)
            cells[site] = f"{mean} ({min(map(min, shares)):.3f} to {max(map(max, shares)):.3f})"
        rows.append(cells)
    return rows


def _mean(values: list[float], digits: int) -> str:
    summary = summarise(values)
    spread = f" ± {summary.spread:.{digits}f}" if summary.count > 1 else ""
    return f"{summary.mean:.{digits}f}{spread}"


def _difference(values: list[float], baseline: list[float]) -> str:
    difference = paired_difference(values, baseline)
    interval = f" [{difference.low:+.2f}, {difference.high:+.2f}]" if len(values) > 1 else ""
    return f"{difference.mean:+.2f}{interval}"
