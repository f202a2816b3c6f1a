"""Text and picture of a table: means, spread, paired differences with confidence intervals, and the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.graph.tables import Block, Column, Table
from experiments.reporting.statistics import Difference, Summary, paired_difference, summarise
from experiments.reporting.tables import markdown_table

__all__ = ["Results", "difference_figure", "table_section"]


@dataclass(frozen=True)
class Results:
    """Metrics of all runs of a table.

    Attributes:
        table: The table.
        seeds: Its seeds.
        metrics: Metrics by (data set, row, seed).
        configs: Configurations of the runs.
    """

    table: Table
    seeds: Sequence[int]
    metrics: Mapping[tuple[str, str, int], Mapping[str, float]]
    configs: Mapping[tuple[str, str, int], Any]

    def values(self, dataset: str, row: str, column: Column) -> list[float] | None:
        """One number a seed; None where the row has no such metric."""
        runs = [self.metrics[dataset, row, seed] for seed in self.seeds]
        return [column.factor * found[column.metric] for found in runs] if column.metric in runs[0] else None

    def main(self, dataset: str, row: str) -> list[float]:
        """The table's main number, one a seed."""
        values = self.values(dataset, row, self.table.main)
        if values is None:
            raise ValueError(f"row {row} has no {self.table.main.metric}")
        return values

    def difference(self, dataset: str, row: str) -> Difference:
        """Of the main number to that of the row it is compared with."""
        return paired_difference(self.main(dataset, row), self.main(dataset, self.table.reference(row)))

    @property
    def comparisons(self) -> int:
        """Number of comparisons, over all data sets."""
        return (len(self.table.rows) - 1) * len(self.table.datasets)

    def main_rows(self) -> list[dict[str, str]]:
        """The main table: one row a row, a few columns a data set."""
        return [{"attention": row} | dict(self._main_cells(row)) for row in self.table.rows]

    def _main_cells(self, row: str) -> Iterator[tuple[str, str]]:
        table = self.table
        for dataset, label in table.datasets.items():
            yield f"{label} {table.main.name}", _with_error(summarise(self.main(dataset, row)))
            text = "" if row == table.baseline else _interval(self.difference(dataset, row), self.comparisons)
            if table.references:
                yield f"difference ({label})", f"{text} to {table.reference(row)}" if text else ""
            else:
                yield f"minus {table.baseline} ({label})", text
            if table.paper:
                paper = table.paper.get(row, {}).get(dataset)
                yield f"paper ({label})", "" if paper is None else f"{paper:.{table.main.digits}f}"

    def block_rows(self, dataset: str, block: Block) -> list[dict[str, str]]:
        """Mean and spread of the block's columns; rows that lack the first are left out."""
        rows = []
        for row in self.table.rows:
            found = {column.name: self.values(dataset, row, column) for column in block.columns}
            if next(iter(found.values())) is not None:
                rows.append({"attention": row} | {c.name: _cell(found[c.name], c) for c in block.columns})
        return rows

    def ensemble_rows(self, dataset: str) -> list[dict[str, str]]:
        """Scores of the ensemble of all seeds, one row a row."""
        rows = []
        for row in self.table.rows:
            metrics = self.table.ensemble([self.configs[dataset, row, seed] for seed in self.seeds])
            cells = {c.name: f"{c.factor * metrics[c.metric]:.{c.digits}f}" for c in self.table.ensemble_columns}
            rows.append({"attention": row} | cells)
        return rows

    def means(self) -> dict[str, float]:
        """``"<data set>/<row>/<metric>"`` to its mean over seeds."""
        return {
            f"{dataset}/{row}/{metric}": float(
                np.mean([self.metrics[dataset, row, seed][metric] for seed in self.seeds])
            )
            for dataset in self.table.datasets
            for row in self.table.rows
            for metric in self.metrics[dataset, row, self.seeds[0]]
        }


def _with_error(summary: Summary) -> str:
    if summary.count == 1:
        return f"{summary.mean:.2f}"
    return f"{summary.mean:.2f} ± {summary.spread:.2f} ({summary.standard_error:.2f})"


def _interval(difference: Difference, comparisons: int) -> str:
    if math.isnan(difference.low):
        return f"{difference.mean:+.2f}"
    sign = "**" if difference.p_value * comparisons < 0.05 else ""
    return f"{sign}{difference.mean:+.2f} [{difference.low:+.2f}, {difference.high:+.2f}]{sign}"


def _cell(values: list[float] | None, column: Column) -> str:
    if values is None:
        return "-"
    summary = summarise(values)
    mean = f"{summary.mean:.{column.digits}f}"
    return mean if summary.count == 1 else f"{mean} ± {summary.spread:.{column.digits}f}"


def table_section(results: Results, command: str, machine: str, picture: str) -> str:
    """The section of RESULTS.md.

    Args:
        results: What was found.
        command: The command that repeats it.
        machine: What it ran on.
        picture: File of the picture, in the folder pictures/ beside the page.
    """
    table, seeds = results.table, results.seeds
    compared = "" if table.references else f" to {table.baseline}"
    parts = [
        f"## {table.title}",
        f"`{command}`; seeds {seeds[0]} to {seeds[-1]}; {machine}.",
        table.text,
        f"Mean ± standard deviation over seeds (standard error of the mean). The difference{compared} is "
        f"taken seed by seed, with its 95 % confidence interval (Student's t, {len(seeds) - 1} degrees of freedom). "
        f"Bold: distinguishable from zero at 5 % after Bonferroni's correction for the {results.comparisons} "
        f"comparisons.",
        markdown_table(results.main_rows()),
        f"![{table.main.name} of every row and seed](pictures/{picture})",
    ]
    for block in table.blocks:
        parts += [f"### {block.title}", block.text]
        for dataset, label in table.datasets.items():
            parts += [f"{label}:", markdown_table(results.block_rows(dataset, block))]
    parts += [
        f"### Deep ensemble of the {len(seeds)} seeds",
        "Mean probability of all runs of a row, one temperature for the mixture. One ensemble each, so without spread.",
    ]
    for dataset, label in table.datasets.items():
        parts += [f"{label}:", markdown_table(results.ensemble_rows(dataset))]
    return "\n\n".join(part for part in parts if part)


def difference_figure(results: Results) -> Figure:
    """Every seed's main number, the row's mean with its 95 % interval, and the paper's number; a panel a data set."""
    table = results.table
    figure = Figure(figsize=(5.2 * len(table.datasets), 0.9 + 0.5 * len(table.rows)), layout="constrained")
    axes = figure.subplots(1, len(table.datasets), sharey=True, squeeze=False)[0]
    for axis, (dataset, label) in zip(axes, table.datasets.items(), strict=True):
        _panel(axis, results, dataset)
        axis.set_title(f"{label}: {table.main.name}", fontsize=11)
    axes[0].set_yticks(range(len(table.rows)), list(table.rows))
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _panel(axis: Axes, results: Results, dataset: str) -> None:
    table = results.table
    baseline = summarise(results.main(dataset, table.baseline)).mean
    axis.axvline(baseline, color="0.6", linewidth=1, linestyle=":", label=f"mean of {table.baseline}")
    for place, row in enumerate(table.rows):
        values = results.main(dataset, row)
        axis.plot(
            values, np.full(len(values), place + 0.18), "|", color="0.55", markersize=7, label=_once(place, "a seed")
        )
        if len(values) > 1:
            mean, interval = summarise(values).mean, paired_difference(values, [0.0] * len(values))
            errors = [[mean - interval.low], [interval.high - mean]]
            axis.errorbar(
                [mean], [place - 0.08], xerr=errors, fmt="o", color="#1b6ca8", capsize=3, markersize=5,
                label=_once(place, "mean, 95 % interval"),
            )  # fmt: skip
        paper = table.paper.get(row, {}).get(dataset)
        if paper is not None:
            axis.plot([paper], [place - 0.08], "D", color="#d1495b", markersize=5, label=_once(place, "paper"))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)


def _once(place: int, label: str) -> str:
    """One entry of the legend for all rows."""
    return label if place == 0 else "_nolegend_"
