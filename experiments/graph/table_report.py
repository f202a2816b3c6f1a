"""Text and picture of a table: means, spread, paired differences with confidence intervals, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.datasets.arrays import read_arrays
from experiments.files import reading
from experiments.graph.config import GraphConfig
from experiments.graph.data import load_data
from experiments.graph.evaluation import prediction_scores
from experiments.graph.model import run_folder
from experiments.graph.tables import BASELINE, ENSEMBLE, Block, Table
from experiments.harness.sweep import Trainings
from experiments.report.columns import Cell, Row, summary_rows
from experiments.report.figures import panels
from experiments.report.report import Part
from experiments.report.statistics import paired_difference, summarize

__all__ = ["difference_figure", "graph_ensemble", "table_parts"]


def table_parts(table: Table, trainings: Trainings[GraphConfig], picture: Path) -> list[Part]:
    """All that is reported of a table, from its trainings by data set, row and seed."""
    main = " or ".join(dict.fromkeys(table.main(dataset).name for dataset in table.datasets))
    seeds, compared = trainings.seeds, "" if table.references else f" to {BASELINE}"
    text = (
        f"{table.text}\n\n"
        f"Mean ± standard deviation over seeds (standard error of the mean). The difference{compared} is "
        f"taken seed by seed, with its 95 % confidence interval (Student's t, {len(seeds) - 1} degrees of freedom). "
        f"Bold: distinguishable from zero at 5 % after Bonferroni's correction for the {_comparisons(table)} "
        f"comparisons."
    )
    compared_with = {
        row: {"compared with": "" if row == BASELINE else table.reference(row)} if table.references else {}
        for row in table.rows
    }
    head: list[Row] = [
        {"attention": row, **compared_with[row], **dict(_main_cells(table, trainings, row))} for row in table.rows
    ]
    parts = [
        Part(text=text, rows=head, labels=2 if table.references else 1),
        Part(picture=picture, caption=f"{main} of every row and seed"),
    ]
    members = "Mean probability of all runs of a row, one temperature for the mixture. One ensemble each, so no spread."
    ensemble = Block(f"Deep ensemble of the {len(seeds)} seeds", members, ENSEMBLE)
    samples = next(iter(trainings.configs.values())).num_samples
    for block in table.blocks if table.splits else (*table.blocks, ensemble):
        title, described = (text.format(num_samples=samples) for text in (block.title, block.text))
        parts.append(Part(title, described, terminal=False))
        for dataset, label in table.datasets.items():
            found = {row: trainings.runs(dataset, row) for row in table.rows}
            if block is ensemble:
                configs = trainings.configs
                found = {row: [graph_ensemble([configs[dataset, row, seed] for seed in seeds])] for row in table.rows}
            shown = {row: runs for row, runs in found.items() if block.columns[0].values(runs)}
            rows = summary_rows("attention", shown, block.columns)
            parts.append(Part(text=f"{label}:", rows=rows, terminal=False))
    return parts


def graph_ensemble(configs: Sequence[GraphConfig]) -> dict[str, float]:
    """Scores of the mean class probabilities of finished runs on one graph; UserError where one left no predictions.

    The members are taken at their posterior mean; one temperature is fitted for the mixture on the validation nodes.

    Source: Lakshminarayanan et al. (2017), Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles.
    """
    members, again = [], "run this configuration again with --overwrite"
    for config in configs:
        path = run_folder(config) / "predictions.npz"
        with reading(path, "an array logits", again):
            members.append(torch.from_numpy(read_arrays(path, again)["logits"]))
    return prediction_scores("mean", torch.stack(members), load_data(configs[0]))


def _comparisons(table: Table) -> int:
    """Number of comparisons, over all data sets."""
    return (len(table.rows) - 1) * len(table.datasets)


def _main_cells(table: Table, trainings: Trainings[GraphConfig], row: str) -> Iterator[tuple[str, Cell]]:
    """Cells of a row of the main table, a few a data set."""
    for dataset, label in table.datasets.items():
        runs, reference, main = trainings.runs(dataset, row), table.reference(row), table.main(dataset)
        yield f"{label} {main.name}", main.cell(runs, error=True)
        difference: Cell = ""
        if row != BASELINE:
            found = main.difference(runs, trainings.runs(dataset, reference), reference)
            difference = replace(found, data=label, bold=found.p_value * _comparisons(table) < 0.05)
        yield f"difference ({label})" if table.references else f"minus {BASELINE} ({label})", difference
        if table.paper:
            paper = table.paper.get(row, {}).get(dataset)
            yield f"paper ({label})", "" if paper is None else f"{paper:.{main.digits}f}"


def difference_figure(table: Table, trainings: Trainings[GraphConfig]) -> Figure:
    """Every seed's main number, the row's mean with its 95 % interval, and the paper's number; a panel a data set."""
    figure, (axes,) = panels(
        1, len(table.datasets), size=(5.2 * len(table.datasets), 0.9 + 0.5 * len(table.rows)), sharey=True
    )
    for axis, (dataset, label) in zip(axes, table.datasets.items(), strict=True):
        _panel(axis, table, trainings, dataset)
        axis.set_title(f"{label}: {table.main(dataset).name}", fontsize=11)
    axes[0].set_yticks(range(len(table.rows)), list(table.rows))
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _panel(axis: Axes, table: Table, trainings: Trainings[GraphConfig], dataset: str) -> None:
    baseline = summarize(table.main(dataset).values(trainings.runs(dataset, BASELINE))).mean
    axis.axvline(baseline, color="0.6", linewidth=1, linestyle=":", label=f"mean of {BASELINE}")
    for place, row in enumerate(table.rows):
        values = table.main(dataset).values(trainings.runs(dataset, row))
        # one entry of the legend for all rows
        seed, mean, paper = ("a seed", "mean, 95 % interval", "paper") if place == 0 else ("_nolegend_",) * 3
        axis.plot(values, np.full(len(values), place + 0.18), "|", color="0.55", markersize=7, label=seed)
        if len(values) > 1:
            found = paired_difference(values, [0.0] * len(values))
            errors = [[found.mean - found.low], [found.high - found.mean]]
            style: dict[str, Any] = {"fmt": "o", "color": "#1b6ca8", "capsize": 3, "markersize": 5}
            axis.errorbar([found.mean], [place - 0.08], xerr=errors, label=mean, **style)
        if row in table.paper:
            axis.plot([table.paper[row][dataset]], [place - 0.08], "D", color="#d1495b", markersize=5, label=paper)
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)
