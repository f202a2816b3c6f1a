"""Choose the hyperparameters of the rows of a table, on validation data alone."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from experiments.graph import train as graph
from experiments.graph.config import EpochOptions, SearchConfig
from experiments.graph.rows import GRIDS, ROWS
from experiments.harness.folder import exclusive
from experiments.harness.options import options_of
from experiments.harness.sweep import Key, Sweep, best_settings
from experiments.reporting.columns import Row, Runs
from experiments.reporting.page import RESULTS
from experiments.reporting.report import Part, Report

__all__ = ["SearchConfig", "run"]


@exclusive
def run(config: SearchConfig) -> dict[str, float]:
    """Train every setting, and print and save the table: ``"<row> <setting>"`` to its mean validation accuracy."""
    name = f"{config.name}-{config.dataset}"
    sweep = Sweep(f"experiments.search {config.name}", config, f"search/{name}", RESULTS, free=("max_epochs",)).open()
    shared = options_of(config, EpochOptions) | {"dataset": config.dataset, "num_samples": 2}
    rows = {(row, _text(setting)): shared | ROWS[row] | setting for row in GRIDS for setting in GRIDS[row]}
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    trainings = sweep.train(graph.run, sweep.configs(graph.GraphConfig, rows, seeds))
    scores = {key: _score(trainings.runs(*key)) for key in trainings.rows}
    text = (
        f"Means over {config.seeds} seeds, which are none of the table's, on the validation nodes, at the epoch that "
        f"early stopping kept. The best setting of a row (largest accuracy, then smallest NLL) is used in the tables "
        f"and studies on all graphs."
    )
    parts = [Part(text=text, rows=_rows(scores))]
    report = Report(f"Settings tried ({config.name}, {config.dataset})", f"search-{name}", parts)
    means = {" ".join(filter(None, key)): accuracy / 100 for key, (accuracy, _) in scores.items()}
    return sweep.finish(report, trainings, means, "validation accuracy at the best epoch, mean over seeds")


def _score(runs: Runs) -> tuple[float, float]:
    """Mean accuracy in per cent, and mean loss."""
    return 100 * fmean(found["val_accuracy"] for found in runs), fmean(found["val_loss"] for found in runs)


def _rows(scores: Mapping[Key, tuple[float, float]]) -> list[Row]:
    """One row a setting; of each row of the table the best is marked."""
    # accuracies are equal up to the rounding of a mean
    best = best_settings({key: (round(accuracy, 4), -loss) for key, (accuracy, loss) in scores.items()})
    return [
        {
            "row": key[0],
            "setting": key[1] or "-",
            "validation accuracy %": f"{accuracy:.2f}",
            "validation NLL": f"{loss:.2f}",
            "best": "best" if key in best else "",
        }
        for key, (accuracy, loss) in scores.items()
    ]


def _text(setting: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in setting.items())
