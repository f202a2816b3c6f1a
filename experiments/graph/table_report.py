"""Text and picture of a table: means, spread, paired differences with confidence intervals, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.graph.config import GraphConfig
from experiments.graph.ensembles import graph_ensemble
from experiments.graph.tables import BASELINE, DATASETS, ENSEMBLE, MAIN, Block, Table
from experiments.harness.sweep import Trainings
from experiments.reporting.columns import Row
from experiments.reporting.figures import panels
from experiments.reporting.report import Part
from experiments.reporting.statistics import paired_difference, summarise

__all__ = ["difference_figure", "table_parts"]


def table_parts(table: Table, trainings: Trainings[GraphConfig], picture: Path) -> list[Part]:
    """All that is reported of a table.

    Args:
        table: The table.
        trainings: Its trainings, by data set, row and seed.
        picture: Its picture.
    """
    count, compared = len(trainings.seeds), "" if table.references else f" to {BASELINE}"
    text = (
        f"{table.text}\n\n"
        f"Mean ± standard deviation over seeds (standard error of the mean). The difference{compared} is "
        f"taken seed by seed, with its 95 % confidence interval (Student's t, {count - 1} degrees of freedom). "
        f"Bold: distinguishable from zero at 5 % after Bonferroni's correction for the {_comparisons(table)} "
        f"comparisons."
    )
    main: list[Row] = [{"attention": row} | dict(_main_cells(table, trainings, row)) for row in table.rows]
    parts = [
        Part(text=text, rows=main),
        Part(picture=picture, caption=f"{MAIN.name} of every row and seed"),
    ]
    for block in table.blocks:
        parts.append(Part(block.title, block.text, terminal=False))
        parts += [
            Part(text=f"{label}:", rows=_block_rows(table, trainings, dataset, block), terminal=False)
            for dataset, label in DATASETS.items()
        ]
    how = (
        "Mean probability of all runs of a row, one temperature for the mixture. One ensemble each, so without spread."
    )
    parts.append(Part(f"Deep ensemble of the {count} seeds", how, terminal=False))
    for dataset, label in DATASETS.items():
        parts.append(Part(text=f"{label}:", rows=_ensemble_rows(table, trainings, dataset), terminal=False))
    return parts


def _comparisons(table: Table) -> int:
    """Number of comparisons, over all data sets."""
    return (len(table.rows) - 1) * len(DATASETS)


def _main_cells(table: Table, trainings: Trainings[GraphConfig], row: str) -> Iterator[tuple[str, str]]:
    """Cells of a row of the main table, a few a data set."""
    for dataset, label in DATASETS.items():
        runs, reference = trainings.runs(dataset, row), table.reference(row)
        yield f"{label} {MAIN.name}", MAIN.cell(runs, error=True)
        text = ""
        if row != BASELINE:
            difference = MAIN.difference(runs, trainings.runs(dataset, reference))
            sign = "**" if difference.p_value * _comparisons(table) < 0.05 else ""
            text = f"{sign}{difference.text()}{sign}"
        if table.references:
            yield f"difference ({label})", f"{text} to {reference}" if text else ""
        else:
            yield f"minus {BASELINE} ({label})", text
        if table.paper:
            paper = table.paper.get(row, {}).get(dataset)
            yield f"paper ({label})", "" if paper is None else f"{paper:.{MAIN.digits}f}"


def _block_rows(table: Table, trainings: Trainings[GraphConfig], dataset: str, block: Block) -> list[Row]:
    """Mean and spread of the block's columns; rows that lack the first are left out."""
    runs = {row: trainings.runs(dataset, row) for row in table.rows}
    return [
        {"attention": row} | {column.name: column.cell(found) for column in block.columns}
        for row, found in runs.items()
        if block.columns[0].values(found)
    ]


def _ensemble_rows(table: Table, trainings: Trainings[GraphConfig], dataset: str) -> list[Row]:
    """Scores of the ensemble of all seeds."""
    rows = []
    for row in table.rows:
        metrics = graph_ensemble([trainings.configs[dataset, row, seed] for seed in trainings.seeds])
        rows.append({"attention": row} | {column.name: column.cell([metrics]) for column in ENSEMBLE})
    return rows


def difference_figure(table: Table, trainings: Trainings[GraphConfig]) -> Figure:
    """Every seed's main number, the row's mean with its 95 % interval, and the paper's number; a panel a data set."""
    figure, (axes,) = panels(1, len(DATASETS), size=(5.2 * len(DATASETS), 0.9 + 0.5 * len(table.rows)), sharey=True)
    for axis, (dataset, label) in zip(axes, DATASETS.items(), strict=True):
        _panel(axis, table, trainings, dataset)
        axis.set_title(f"{label}: {MAIN.name}", fontsize=11)
    axes[0].set_yticks(range(len(table.rows)), list(table.rows))
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _panel(axis: Axes, table: Table, trainings: Trainings[GraphConfig], dataset: str) -> None:
    baseline = summarise(MAIN.values(trainings.runs(dataset, BASELINE))).mean
    axis.axvline(baseline, color="0.6", linewidth=1, linestyle=":", label=f"mean of {BASELINE}")
    for place, row in enumerate(table.rows):
        values = MAIN.values(trainings.runs(dataset, row))
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
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)


def _once(place: int, label: str) -> str:
    """One entry of the legend for all rows."""
    return label if place == 0 else "_nolegend_"
