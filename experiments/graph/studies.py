"""How kinds of attention fare with fewer labels, noisy features or noisy edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from experiments.graph import train as graph
from experiments.graph.config import StudyConfig, StudyName
from experiments.graph.heterophilous import HETEROPHILOUS
from experiments.graph.rows import LEGEND, SEARCHED, SEARCHED_CHAMELEON, settings
from experiments.graph.tables import TABLES
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Column, Row
from experiments.report.figures import panels, save
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.report.statistics import summarize

__all__ = ["STUDIES", "Study", "StudyConfig", "run"]

_COLOURS = {"soft": "0.35", "LC": "#d1495b", "WC": "#1b6ca8"}
_COLUMNS = (
    Column("ECE", "test_mean_ece"),
    Column("ECE, scaled", "test_mean_scaled_ece"),
    Column("NLL, scaled", "test_mean_scaled_nll"),
)


@dataclass(frozen=True)
class Study:
    """One option of experiments.graph at several levels."""

    title: str
    text: str  # what the levels mean
    option: str
    levels: tuple[float, ...]
    axis: str  # label of the levels
    columns: tuple[Column, ...] = _COLUMNS  # beside the number that the rows are compared by


STUDIES: dict[StudyName, Study] = {
    "label_rate": Study(
        title="Fewer labels",
        text="This number of training labels of each class, or all of a class that has fewer, drawn at random by the "
        "run's seed.",
        option="labels_per_class",
        levels=(2, 5, 10, 20),
        axis="labels per class",
    ),
    "feature_noise": Study(
        title="Noisy features",
        text="This fraction of the non-zero features of all nodes moves to random other places of their rows.",
        option="feature_noise",
        levels=(0.0, 0.3, 0.6),
        axis="fraction of features moved",
    ),
    "edge_noise": Study(
        title="Noisy edges",
        text="Random edges are added, as a fraction of the edges of the graph. Noise attention: attention paid to "
        "added edges, divided by what uniform attention would pay them (1 = not ignored at all).",
        option="edge_noise",
        levels=(0.0, 1.0, 2.0),
        axis="random edges added, per edge",
        columns=(*_COLUMNS, Column("noise attention", "noise_edge_attention")),
    ),
}


@exclusive
def run(config: StudyConfig) -> dict[str, float]:
    """Train what is missing, write the section, print its table: ``"<row>/<level>/<metric>"`` to means over seeds."""
    study, name = STUDIES[config.name], f"{config.name}-{config.dataset}"
    table = HETEROPHILOUS if config.dataset in HETEROPHILOUS.datasets else TABLES["bam1"]
    searched = SEARCHED_CHAMELEON if table is HETEROPHILOUS else SEARCHED
    own, main = table.graph_rows.get(config.dataset, {}), table.main(config.dataset)
    chosen = {row: {**options, **own.get(row, {})} for row, options in settings(config.rows, searched).items()}
    shared = table.options(
        config.dataset, max_epochs=config.max_epochs, patience=config.patience, num_samples=config.num_samples
    )
    free = ("seeds", "max_epochs")
    sweep = Sweep(f"experiments.studies {config.name}", config, f"studies/{name}", RESULTS, free=free).open()
    rows = {
        (row, level): shared | options | {study.option: level}
        for level in study.levels
        for row, options in chosen.items()
    }
    configs = sweep.configs(graph.GraphConfig, rows, range(config.seeds))
    if table.splits:
        configs = {key: replace(one, split_seed=one.seed) for key, one in configs.items()}
    trainings = sweep.train(graph.run, configs)
    graphs = "heterophilous graphs, each seed with a split of its own" if table.splits else "citation graphs"
    epochs = shared["max_epochs"]
    text = (
        f"{study.text} {LEGEND} Settings as in the table on {graphs}; not searched again. At most {epochs} "
        f"epochs. Attention at its posterior mean. Mean ± standard deviation over {config.seeds} seeds; the difference "
        f"to {config.rows[0]} in {_name(main)} is taken seed by seed, with its 95 % confidence interval (Student's t), "
        f"not corrected for the number of comparisons."
    )
    columns = (main, *study.columns)
    picture = save(_figure(study, columns, trainings, config.rows), sweep.pictures / f"{name}.png")
    compared = Part(text=text, rows=_rows(study, columns, trainings, config.rows[0]))
    parts = [compared, Part(picture=picture, caption=study.title)]
    report = Report(f"{study.title} ({config.dataset})", name, parts)
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _name(main: Column) -> str:
    return main.name.removesuffix(" %")


def _rows(study: Study, columns: Sequence[Column], trainings: Trainings[graph.GraphConfig], first: str) -> list[Row]:
    rows = list[Row]()
    for row, level in trainings.rows:
        runs, others = trainings.runs(row, level), trainings.runs(first, level)
        cells: Row = {study.axis: f"{level:g}", "attention": row}
        cells |= {column.name: column.cell(runs) for column in columns}
        cells[f"{_name(columns[0])} minus {first}"] = "" if row == first else columns[0].difference(runs, others, first)
        rows.append(cells)
    return rows


def _figure(
    study: Study, columns: Sequence[Column], trainings: Trainings[graph.GraphConfig], rows: tuple[str, ...]
) -> Figure:
    """One panel a metric: mean over seeds with its standard error, against the level."""
    figure, (axes,) = panels(1, len(columns), size=(3.4 * len(columns), 3.4))
    for axis, column in zip(axes, columns, strict=True):
        for place, row in enumerate(rows):
            values = [column.values(trainings.runs(row, level)) or [math.nan] for level in study.levels]
            found = [summarize(one) for one in values]
            axis.errorbar(
                np.arange(len(found)) + 0.06 * (place - (len(rows) - 1) / 2), [one.mean for one in found],
                yerr=[0 if math.isnan(one.standard_error) else one.standard_error for one in found],
                marker="o", markersize=4, capsize=2, linewidth=1.3, color=_COLOURS.get(row), label=row,
            )  # fmt: skip
        axis.set_title(column.name, fontsize=10)
        axis.set_xticks(np.arange(len(study.levels)), [f"{level:g}" for level in study.levels])
        axis.grid(axis="y", color="0.92")
    figure.supxlabel(study.axis, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, title="mean, s.e.", title_fontsize=8)
    return figure
