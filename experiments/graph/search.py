"""Choose the hyperparameters of the rows of a table, on validation data alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.files import user_errors
from experiments.graph import train as graph
from experiments.graph.config import SearchConfig
from experiments.graph.rows import GRIDS, ROWS
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.parallel import run_all
from experiments.harness.results import write_metrics
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.tables import as_table, markdown_table

__all__ = ["SearchConfig", "run"]

_SHOWN = {"val_accuracy": "accuracy %", "val_loss": "NLL"}


@exclusive
def run(config: SearchConfig) -> dict[str, float]:
    """Train every setting, print the table and save it.

    Returns:
        ``"<row> <setting>"`` to its mean validation accuracy.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C; ``resume`` continues.
    """
    folder = config.out or Path("runs", "search", f"{config.name}-{config.dataset}")
    with user_errors(ValueError, OSError):
        open_run(folder, config, free=("max_epochs",))
    settings = {f"{row} {_text(setting)}".strip(): (row, setting) for row in GRIDS for setting in GRIDS[row]}
    configs = {
        (name, seed): _run_config(config, folder, name, ROWS[row] | setting, seed)
        for name, (row, setting) in settings.items()
        for seed in _seeds(config)
    }
    metrics = run_all(graph.run, configs, workers=config.workers, progress=config.progress)
    rows: list[dict[str, Any]] = [
        {
            "row": row,
            "setting": _text(setting) or "-",
            **{f"validation {shown}": _mean(config, metrics, name, metric) for metric, shown in _SHOWN.items()},
        }
        for name, (row, setting) in settings.items()
    ]
    for row in GRIDS:
        best = max((found for found in rows if found["row"] == row), key=_quality)
        for found in rows:
            if found["row"] == row:
                found["best"] = "best" if found is best else ""
    page = config.results or RESULTS
    machine = hardware([found.out for found in configs.values() if found.out])
    update_section(page, f"search-{config.name}-{config.dataset}", _section(config, rows, machine))
    print(f"\n{as_table(rows)}\n\nmeans over {config.seeds} seeds on the validation nodes of {config.dataset}\n{page}")
    means = {name: found["validation accuracy %"] / 100 for name, found in zip(settings, rows, strict=True)}
    write_metrics(folder, means, dict.fromkeys(means, "validation accuracy at the best epoch, mean over seeds"))
    return means


def _mean(
    config: SearchConfig, metrics: Mapping[tuple[str, int], Mapping[str, float]], name: str, metric: str
) -> float:
    values = [metrics[name, seed][metric] for seed in _seeds(config)]
    return fmean(values) * (100 if metric == "val_accuracy" else 1)


def _quality(found: Mapping[str, Any]) -> tuple[float, float]:
    """Accuracy, and of equal accuracies the smaller loss."""
    return round(found["validation accuracy %"], 4), -found["validation NLL"]  # equal up to the rounding of a mean


def _seeds(config: SearchConfig) -> range:
    return range(config.first_seed, config.first_seed + config.seeds)


def _section(config: SearchConfig, rows: Sequence[Mapping[str, Any]], machine: str) -> str:
    shown = [{key: f"{value:.2f}" if isinstance(value, float) else value for key, value in row.items()} for row in rows]
    return f"""## Settings tried ({config.name}, {config.dataset})

`{command_line(f"experiments.search {config.name}", config)}`; seeds {config.first_seed} to \
{config.first_seed + config.seeds - 1}, which are none of the table's; {machine}.

Means over {config.seeds} seeds on the validation nodes, at the epoch that early stopping kept. The best setting of a \
row (largest accuracy, then smallest NLL) is used in the tables and studies on all graphs.

{markdown_table(shown)}"""


def _text(setting: dict[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in setting.items())


def _run_config(config: SearchConfig, folder: Path, name: str, row: dict[str, Any], seed: int) -> graph.GraphConfig:
    shared = {option: getattr(config, option) for option in ("dataset", "max_epochs", "patience")}
    out = folder / "runs" / f"{name.replace(' ', '-')}-{seed}"
    return graph.GraphConfig(**config.for_runs(), **shared, **row, seed=seed, num_samples=2, out=out)
