"""Compare the kinds of attention on a graph: a table, pictures and a report.

python -m experiments.compare --task graph
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jsonargparse.typing import NonNegativeFloat, PositiveInt

from experiments import graph
from experiments.cli import command_line
from experiments.datasets.graphs import GraphName
from experiments.graph_evaluation import DEFINITIONS
from experiments.graph_figures import attention_figure, calibration_figure
from experiments.graph_rows import LEGEND as ROWS_LEGEND
from experiments.graph_rows import ROWS
from experiments.parallel import run_all
from experiments.report import Section, write_report
from experiments.results import SweepOptions, as_table, exclusive, open_run, user_errors, write_metrics
from experiments.results_page import hardware, markdown_table, update_section
from experiments.scheme_table import mean_metrics

__all__ = ["CompareGraphs", "run"]

MC_DROPOUT = "soft + MC dropout"
LEGEND = (
    f"{ROWS_LEGEND} gamma: Gamma posterior, contextual prior. Bayesian rows average the class probabilities over "
    "posterior samples of the attention, MC dropout over dropout masks of the soft row's network."
)


@dataclass(frozen=True, kw_only=True)
class CompareGraphs(SweepOptions):
    """Compare the kinds of attention on a graph.

    Args:
        task: The task; --task translation has other options.
        dataset: The graph.
        seeds: Number of seeds; each row is trained once a seed.
        max_epochs: Epochs at most.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        kl_weight: Weight of the KL in the Bayesian rows; see experiments.graph.
        num_samples: Samples of a prediction.
    """

    task: Literal["graph"] = "graph"
    dataset: GraphName = "digits"
    seeds: PositiveInt = 2  # type: ignore[valid-type]
    max_epochs: PositiveInt = 80  # type: ignore[valid-type]
    patience: PositiveInt = 80  # type: ignore[valid-type]
    kl_weight: NonNegativeFloat = 1e-3  # type: ignore[valid-type]
    num_samples: PositiveInt = 30  # type: ignore[valid-type]


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
    shared = {name: getattr(config, name) for name in ("dataset", "max_epochs", "patience", "kl_weight", "num_samples")}
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
