"""How kinds of attention fare with fewer labels, noisy features or noisy edges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.files import user_errors
from experiments.graph import train as graph
from experiments.graph.config import GraphOptions, StudyConfig, StudyName
from experiments.graph.rows import LEGEND, ROWS, SEARCHED
from experiments.harness.cli import command_line, expected_one_of
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.statistics import paired_difference, summarise
from experiments.reporting.tables import as_table, markdown_table

__all__ = ["STUDIES", "Study", "StudyConfig", "run"]

_COLOURS = {"soft": "0.35", "LC": "#d1495b", "WC": "#1b6ca8"}


@dataclass(frozen=True)
class Study:
    """One option of experiments.graph at several levels.

    Attributes:
        title: Title.
        text: What the levels mean.
        option: The option.
        levels: Its values.
        axis: Label of the levels.
        metrics: What is shown: metric to (label, digits, factor).
    """

    title: str
    text: str
    option: str
    levels: tuple[float, ...]
    axis: str
    metrics: dict[str, tuple[str, int, float]]


_SHOWN: dict[str, tuple[str, int, float]] = {
    "test_mean_accuracy": ("accuracy %", 2, 100),
    "test_mean_ece": ("ECE", 3, 1),
    "test_mean_scaled_ece": ("ECE, scaled", 3, 1),
    "test_mean_scaled_nll": ("NLL, scaled", 3, 1),
}

STUDIES: dict[StudyName, Study] = {
    "label_rate": Study(
        title="Fewer labels",
        text="So many training labels of each class, drawn at random from the public 20 by the run's seed.",
        option="labels_per_class",
        levels=(2, 5, 10, 20),
        axis="labels per class",
        metrics=_SHOWN,
    ),
    "feature_noise": Study(
        title="Noisy features",
        text="This fraction of the non-zero features of all nodes moves to random other places of their rows.",
        option="feature_noise",
        levels=(0.0, 0.3, 0.6),
        axis="fraction of features moved",
        metrics=_SHOWN,
    ),
    "edge_noise": Study(
        title="Noisy edges",
        text="Random edges are added, as a fraction of the edges of the graph. Noise attention: attention paid to "
        "added edges, divided by what uniform attention would pay them (1 = not ignored at all).",
        option="edge_noise",
        levels=(0.0, 1.0, 2.0),
        axis="random edges added, per edge",
        metrics=_SHOWN | {"noise_edge_attention": ("noise attention", 3, 1)},
    ),
}


@exclusive
def run(config: StudyConfig) -> dict[str, float]:
    """Train what is not trained yet, write the section and print its table.

    Returns:
        ``"<row>/<level>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    study, folder = STUDIES[config.name], config.out or Path("runs", "studies", f"{config.name}-{config.dataset}")
    page = config.results or RESULTS
    with user_errors(ValueError, OSError):
        unknown = next((row for row in config.rows if row not in ROWS), "")
        if unknown or not config.rows:
            raise ValueError(f"rows '{unknown}': {expected_one_of(ROWS, unknown)}")
        open_run(folder, config, free=("seeds", "max_epochs"))
    configs = {
        (row, level, seed): _run_config(config, study, folder, row, level, seed)
        for seed in range(config.seeds)
        for level in study.levels
        for row in config.rows
    }
    metrics = run_all(graph.run, configs, workers=config.workers, progress=config.progress)
    values = {
        (row, level, metric): [metrics[row, level, seed].get(metric, float("nan")) for seed in range(config.seeds)]
        for row in config.rows
        for level in study.levels
        for metric in study.metrics
    }
    rows = _rows(config, study, values)
    name = f"{config.name}-{config.dataset}"
    picture = save(_figure(config, study, values), page.parent / "pictures" / f"{name}.png")
    machine = hardware([found.out for found in configs.values() if found.out])
    update_section(page, name, _section(config, study, rows, f"pictures/{picture.name}", machine))
    means = {"/".join(map(str, key)): float(np.mean(found)) for key, found in values.items()}
    write_metrics(folder, means, dict.fromkeys(means, "mean over seeds; see metrics.json of the runs"))
    print(f"\n{as_table(rows)}\n\n{page}\n{picture}")
    return means


def _run_config(
    config: StudyConfig, study: Study, folder: Path, row: str, level: float, seed: int
) -> graph.GraphConfig:
    shared = options_of(config, GraphOptions)
    out = folder / "runs" / f"{row.replace(' ', '-')}-{level:g}-{seed}"
    options: dict[str, Any] = shared | ROWS[row] | SEARCHED.get(row, {}) | {study.option: level}
    return graph.GraphConfig(**config.for_runs(), **options, seed=seed, out=out)


def _section(config: StudyConfig, study: Study, rows: list[dict[str, str]], picture: str, machine: str) -> str:
    command = command_line(f"experiments.studies {config.name}", config)
    return f"""## {study.title} ({config.dataset})

`{command}`; seeds 0 to {config.seeds - 1}; {machine}.

{study.text} {LEGEND} Settings as in the table on citation graphs; not searched again. Attention at its posterior \
mean. Mean ± standard deviation over {config.seeds} seeds; the difference to {config.rows[0]} in accuracy is taken \
seed by seed, with its 95 % confidence interval, not corrected for the number of comparisons.

{markdown_table(rows)}

![{study.title}]({picture})"""


def _rows(config: StudyConfig, study: Study, values: dict[tuple[str, float, str], list[float]]) -> list[dict[str, str]]:
    first = config.rows[0]
    rows = []
    for level in study.levels:
        for row in config.rows:
            cells = {study.axis: f"{level:g}", "attention": row}
            for metric, (label, digits, factor) in study.metrics.items():
                summary = summarise([factor * value for value in values[row, level, metric]])
                spread = f" ± {summary.spread:.{digits}f}" if config.seeds > 1 else ""
                cells[label] = "-" if np.isnan(summary.mean) else f"{summary.mean:.{digits}f}{spread}"
            accuracy = "test_mean_accuracy"
            difference = paired_difference(values[row, level, accuracy], values[first, level, accuracy])
            interval = f" [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]" if config.seeds > 1 else ""
            cells[f"accuracy minus {first}"] = "" if row == first else f"{100 * difference.mean:+.2f}{interval}"
            rows.append(cells)
    return rows


def _figure(config: StudyConfig, study: Study, values: dict[tuple[str, float, str], list[float]]) -> Figure:
    """One panel a metric: mean over seeds with its standard error, against the level."""
    figure = Figure(figsize=(3.4 * len(study.metrics), 3.4), layout="constrained")
    axes = figure.subplots(1, len(study.metrics), squeeze=False)[0]
    positions = np.arange(len(study.levels))
    for axis, (metric, (label, _, factor)) in zip(axes, study.metrics.items(), strict=True):
        for place, row in enumerate(config.rows):
            found = [summarise([factor * value for value in values[row, level, metric]]) for level in study.levels]
            axis.errorbar(
                positions + 0.06 * (place - (len(config.rows) - 1) / 2), [summary.mean for summary in found],
                yerr=[0 if np.isnan(summary.standard_error) else summary.standard_error for summary in found],
                marker="o", markersize=4, capsize=2, linewidth=1.3, color=_COLOURS.get(row), label=row,
            )  # fmt: skip
        axis.set_title(label, fontsize=10)
        axis.set_xticks(positions, [f"{level:g}" for level in study.levels])
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="0.92")
    figure.supxlabel(study.axis, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, title="mean, s.e.", title_fontsize=8)
    return figure
