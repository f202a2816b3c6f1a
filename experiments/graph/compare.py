"""Compare the kinds of attention on a graph: a table, pictures and a report.

python -m experiments.compare --task graph
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.files import user_errors
from experiments.graph import train as graph
from experiments.graph.config import CompareGraphs, GraphOptions
from experiments.graph.evaluation import DEFINITIONS
from experiments.graph.figures import attention_figure, calibration_figure
from experiments.graph.rows import LEGEND as ROWS_LEGEND
from experiments.graph.rows import ROWS
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.options import options_of
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.html import Section, write_report
from experiments.reporting.page import hardware, update_section
from experiments.reporting.scheme_table import mean_metrics
from experiments.reporting.tables import as_table, markdown_table

__all__ = ["CompareGraphs", "run"]

MC_DROPOUT = "soft + MC dropout"
LEGEND = (
    f"{ROWS_LEGEND} gamma: Gamma posterior, contextual prior. Bayesian rows average the class probabilities over "
    "posterior samples of the attention, MC dropout over dropout masks of the soft row's network."
)


@exclusive
def run(config: CompareGraphs) -> dict[str, float]:
    """Train all rows, print the table, and write pictures and report.html.

    Returns:
        ``"<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = config.out or Path("runs", "compare", config.dataset)
    with user_errors(ValueError, OSError):
        open_run(folder, config)
    configs = {(row, seed): _run_config(config, folder, row, seed) for row in ROWS for seed in range(config.seeds)}
    metrics = run_all(graph.run, configs, workers=config.workers, progress=config.progress, describe=_describe)
    runs = {row: [metrics[row, seed] for seed in range(config.seeds)] for row in ROWS}
    rows = _table_rows(runs)
    table = as_table(rows)
    print(f"\n{table}\n\n{textwrap.fill(LEGEND, 100)}\n\nWriting the pictures ...", flush=True)
    pictures = folder / "figures"
    first = {row: configs[row, 0] for row in ROWS}
    reliability = calibration_figure(first, pictures / "reliability.png")
    attention = attention_figure(first["WC"], pictures / "neighbourhood.png")
    report = write_report(
        folder / "report.html",
        f"Kinds of attention on {config.dataset}",
        [
            Section("Test results", f"Over {config.seeds} seeds: mean +- standard deviation. {LEGEND}", table=table),
            Section(
                "Is the confidence honest?",
                "Seed 0, test nodes, bins of at least ten; above the diagonal a network is less sure than it could be.",
                picture=reliability,
            ),
            Section(
                "Whom does a node attend to, and how sure is the posterior?", attention.text, picture=attention.path
            ),
            Section("Configuration", table=(folder / "config.yaml").read_text()),
        ],
    )
    means = mean_metrics(runs)
    write_metrics(folder, means, {key: f"{DEFINITIONS[key.split('/')[1]]}; mean over seeds" for key in means})
    if config.results is not None:
        machine = hardware([Path(str(found.out)) for found in configs.values()])
        parts = [
            f"## Kinds of attention on {config.dataset}",
            f"`{command_line('experiments.compare', config, always=('task',))}`, on {machine}.",
            f"Over {config.seeds} seeds: mean +- standard deviation. {LEGEND}",
            markdown_table(rows),
        ]
        update_section(config.results, f"compare-{config.dataset}", "\n\n".join(parts))
    print(f"\n{reliability}\n{attention.path}\n{report}")
    return means


def _run_config(config: CompareGraphs, folder: Path, row: str, seed: int) -> graph.GraphConfig:
    shared = options_of(config, GraphOptions) | {"kl_weight": config.kl_weight}
    out = folder / "runs" / f"{row.replace(' ', '-')}-{seed}"
    return graph.GraphConfig(**config.for_runs(), **(shared | ROWS[row]), seed=seed, out=out)


def _describe(key: tuple[str, int], metrics: Mapping[str, float]) -> str:
    return f"{key[0]}, seed {key[1]}: {metrics['val_accuracy']:.3f} on validation"


def _table_rows(runs: Mapping[str, Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for row, found in runs.items():
        rows.append(_table_row(row, found, "mean" if row == "soft" else "attention"))
        if row == "soft":
            rows.append(_table_row(MC_DROPOUT, found, "mc_dropout"))
    return rows


def _table_row(name: str, runs: Sequence[Mapping[str, float]], kind: str) -> dict[str, Any]:
    def cell(metric: str, digits: int, factor: float = 1) -> str:
        values = torch.tensor([factor * found[metric] for found in runs], dtype=torch.float64)
        spread = f" +- {values.std():.{digits}f}" if len(runs) > 1 else ""
        return f"{values.mean():.{digits}f}{spread}"

    bayesian = kind == "attention"
    return {
        "attention": name,
        "accuracy %": cell(f"test_{kind}_accuracy", 2, 100),
        "NLL": cell(f"test_{kind}_nll", 3),
        "ECE": cell(f"test_{kind}_ece", 3),
        "|KL gradient|": cell("kl_gradient_norm", 1) if bayesian else "-",
        "ms/step": cell("step_ms", 1),
    }
