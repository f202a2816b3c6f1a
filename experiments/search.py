"""Choose the hyperparameters of the rows of a table, on validation data alone.

python -m experiments.search bam1 --data-root DIR
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import PositiveInt

from experiments import graph
from experiments.cli import run_script
from experiments.datasets.graphs import GraphName
from experiments.graph_rows import GRIDS, ROWS
from experiments.parallel import run_all
from experiments.results import RunOptions, as_table, open_run, user_errors, write_metrics

__all__ = ["SearchConfig", "run"]


@dataclass(frozen=True, kw_only=True)
class SearchConfig(RunOptions):
    """Try every setting of a table's rows and show which is best on the validation nodes.

    Args:
        name: The table whose rows are searched.
        dataset: The graph; the setting found on it is used on the others.
        seeds: Number of seeds; they are those after the table's, so that no run serves both.
        first_seed: The first of them.
        max_epochs: Epochs at most.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        workers: Trainings at a time, each on one thread.
    """

    name: Literal["bam1"]
    dataset: GraphName = "cora"
    seeds: PositiveInt = 3  # type: ignore[valid-type]
    first_seed: PositiveInt = 1000  # type: ignore[valid-type]
    max_epochs: PositiveInt = 2000  # type: ignore[valid-type]
    patience: PositiveInt = 100  # type: ignore[valid-type]
    workers: PositiveInt = 2  # type: ignore[valid-type]


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
        open_run(folder, config, free=("workers",))
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    settings = {f"{row} {_text(setting)}".strip(): (row, setting) for row in GRIDS for setting in GRIDS[row]}
    configs = {
        (name, seed): _run_config(config, folder, name, ROWS[row] | setting, seed)
        for name, (row, setting) in settings.items()
        for seed in seeds
    }
    metrics = run_all(graph.run, configs, workers=config.workers, progress=config.progress)
    found = {
        name: {
            metric: sum(metrics[name, seed][f"val_{metric}"] for seed in seeds) / config.seeds
            for metric in ("accuracy", "loss")
        }
        for name in settings
    }
    best = {
        row: max(
            (name for name, (owner, _) in settings.items() if owner == row),
            key=lambda name: (found[name]["accuracy"], -found[name]["loss"]),
        )
        for row in GRIDS
    }
    rows = [
        {"setting": name, "accuracy": values["accuracy"], "loss": values["loss"], "": "best" * (name in best.values())}
        for name, values in found.items()
    ]
    print(f"\n{as_table(rows)}\n\nmeans over {config.seeds} seeds on the validation nodes of {config.dataset}")
    means = {name: values["accuracy"] for name, values in found.items()}
    write_metrics(folder, means, dict.fromkeys(means, "validation accuracy at the best epoch, mean over seeds"))
    return means


def _text(setting: dict[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in setting.items())


def _run_config(config: SearchConfig, folder: Path, name: str, row: dict[str, Any], seed: int) -> graph.GraphConfig:
    shared = {option: getattr(config, option) for option in ("dataset", "max_epochs", "patience")}
    out = folder / "runs" / f"{name.replace(' ', '-')}-{seed}"
    return graph.GraphConfig(**config.for_runs(), **shared, **row, seed=seed, num_samples=20, out=out)


if __name__ == "__main__":
    sys.exit(run_script(SearchConfig, run, name="experiments.search"))
