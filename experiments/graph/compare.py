"""Compare the kinds of attention on a graph: a table, pictures and a report.

python -m experiments.compare --task graph
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from experiments.graph import train as graph
from experiments.graph.config import CompareGraphs, GraphOptions
from experiments.graph.evaluation import DEFINITIONS
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.graph.rows import LEGEND as ROWS_LEGEND
from experiments.graph.rows import ROWS
from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Column, Row, Runs
from experiments.report.figures import reliability_diagram, save
from experiments.report.report import Part, Report

__all__ = ["CompareGraphs", "run"]

MC_DROPOUT = "soft + MC dropout"
LEGEND = (
    f"{ROWS_LEGEND} gamma: Gamma posterior, contextual prior. Bayesian rows average the class probabilities over "
    "posterior samples of the attention, MC dropout over dropout masks of the soft row's network."
)


@exclusive
def run(config: CompareGraphs) -> dict[str, float]:
    """Train all rows, print the table, write pictures and report.html: ``"<row>/<metric>"`` to its mean over seeds."""
    name = f"compare-{config.dataset}"
    sweep = Sweep("experiments.compare", config, f"compare/{config.dataset}", always=("task",)).open()
    shared = options_of(config, GraphOptions) | {"kl_weight": config.kl_weight}
    rows = {(row,): shared | options for row, options in ROWS.items()}
    trainings = sweep.train(graph.run, sweep.configs(graph.GraphConfig, rows, range(config.seeds)))
    text = f"Over {config.seeds} seeds: mean ± standard deviation. {LEGEND}"
    table = Part(text=text, rows=[_table_row(*row) for row in _kinds(trainings)])
    parts = [table, *_pictures(trainings, sweep.folder / "figures")]
    report = Report(f"Kinds of attention on {config.dataset}", name, parts)
    meanings = {name: f"{text}; mean over seeds" for name, text in DEFINITIONS.items()}
    return sweep.finish(report, trainings, definitions=meanings)


def _kinds(trainings: Trainings[graph.GraphConfig]) -> list[tuple[str, Runs, str]]:
    """Rows of the table: name, metrics and kind of prediction."""
    (soft, runs), *bayesian = trainings.by_row().items()
    return [(soft, runs, "mean"), (MC_DROPOUT, runs, "mc_dropout"), *((*row, "attention") for row in bayesian)]


def _table_row(name: str, runs: Runs, kind: str) -> Row:
    columns = [
        Column("accuracy %", f"test_{kind}_accuracy", 2, 100),
        Column("NLL", f"test_{kind}_nll"),
        Column("ECE", f"test_{kind}_ece"),
        Column("|KL gradient|", "kl_gradient_norm" if kind == "attention" else "-", 1),
        Column("ms/step", "step_ms", 1),
    ]
    return {"attention": name} | {column.name: column.cell(runs) for column in columns}


def _pictures(trainings: Trainings[graph.GraphConfig], folder: Path) -> list[Part]:
    """Calibration of the first seed's networks, and the attention of one of them."""
    print("Drawing the pictures ...", flush=True)
    panels = dict[str, tuple[Tensor, Tensor]]()
    for (row,) in trainings.rows:
        panels |= calibration_panels(row, graph.load_trained(trainings.first(row)))
    figure, caption = attention_figure(graph.load_trained(trainings.first("WC")))
    return [
        Part(
            "Is the confidence honest?",
            "Seed 0, test nodes, bins of at least ten; above the diagonal a network is less sure than it could be.",
            picture=save(reliability_diagram(panels), folder / "reliability.png"), published=False,
        ),
        Part(
            "Whom does a node attend to, and how sure is the posterior?", caption,
            picture=save(figure, folder / "neighbourhood.png"), published=False,
        ),
    ]  # fmt: skip
