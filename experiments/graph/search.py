"""Choose the hyperparameters of the rows of a table, on validation data alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from experiments.files import UserError
from experiments.graph import train as graph
from experiments.graph.config import SearchConfig
from experiments.graph.rows import GRIDS, ROWS
from experiments.graph.table import EVERY_TABLE
from experiments.graph.tables import Table
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, best_settings
from experiments.harness.words import expected_one_of
from experiments.report.columns import Column, Row, Runs
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS

__all__ = ["SearchConfig", "run"]


@exclusive
def run(config: SearchConfig) -> dict[str, float]:
    """Train every setting, and print and save the table: ``"<row> <setting>"`` to its mean validation accuracy."""
    table, name = EVERY_TABLE[config.name], f"{config.name}-{config.dataset}"
    if table.splits and config.dataset not in table.datasets:
        raise UserError(f"dataset {config.dataset}: {expected_one_of(table.datasets, config.dataset)}")
    unknown = next((row for row in config.rows if row not in _searched(table)), None)
    if unknown is not None:
        raise UserError(f"rows '{unknown}': {expected_one_of(_searched(table), unknown)}")
    sweep = Sweep(f"experiments.search {config.name}", config, f"search/{name}", RESULTS, free=("max_epochs",)).open()
    shared = table.options(config.dataset, max_epochs=config.max_epochs, patience=config.patience, num_samples=2)
    rows = {
        (row, _text(setting)): shared | ROWS[row] | setting
        for row in config.rows or _searched(table)
        for setting in GRIDS[row]
    }
    configs = sweep.configs(graph.GraphConfig, rows, range(config.first_seed, config.first_seed + config.seeds))
    if table.splits:
        configs = {key: replace(one, split_seed=one.seed - config.first_seed) for key, one in configs.items()}
    trainings = sweep.train(graph.run, configs)
    quality = table.main(config.dataset)
    scores = {key: _score(trainings.runs(*key), quality) for key in trainings.rows}
    others = "the other graphs of the table, because nodes that validate in one split test in another"
    text = (
        f"Means over {config.seeds} seeds, which are none of the table's, on the validation nodes, at the epoch that "
        f"early stopping kept. The best setting of a row (largest {_name(quality)}, then smallest NLL) is for "
        f"{others if table.splits else 'all graphs of the table, and for the studies on them'}."
    )
    parts = [Part(text=text, rows=_rows(scores, quality))]
    report = Report(f"Settings tried ({config.name}, {config.dataset})", f"search-{name}", parts)
    means = {" ".join(filter(None, key)): accuracy / 100 for key, (accuracy, _) in scores.items()}
    return sweep.finish(report, trainings, means, f"validation {_name(quality)} at the best epoch, mean over seeds")


def _searched(table: Table) -> list[str]:
    """Rows of the table that there are settings for."""
    return [row for row in GRIDS if row in table.rows]


def _name(quality: Column) -> str:
    return quality.name.removesuffix(" %")


def _score(runs: Runs, quality: Column) -> tuple[float, float]:
    """Mean accuracy (or what the graph asks for) in per cent, and mean loss."""
    metric = quality.metric.replace("test_mean_", "val_")
    return 100 * fmean(found[metric] for found in runs), fmean(found["val_loss"] for found in runs)


def _rows(scores: Mapping[Key, tuple[float, float]], quality: Column) -> list[Row]:
    """One row a setting; of each row of the table the best is marked."""
    # accuracies are equal up to the rounding of a mean
    best = best_settings({key: (round(accuracy, 4), -loss) for key, (accuracy, loss) in scores.items()})
    return [
        {
            "row": key[0],
            "setting": key[1] or "-",
            f"validation {quality.name}": f"{accuracy:.2f}",
            "validation NLL": f"{loss:.2f}",
            "best": "best" if key in best else "",
        }
        for key, (accuracy, loss) in scores.items()
    ]


def _text(setting: Mapping[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in setting.items())
