"""Try settings of the rows of the table, and compare them on validation questions alone."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, best_settings
from experiments.report.columns import Column, Row
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.vqa import train as vqa
from experiments.vqa.config import SearchConfig, VQAConfig
from experiments.vqa.rows import GRIDS, POSTERIORS
from experiments.vqa.table import prepare, shared_options

__all__ = ["run"]

_COLUMNS = (Column("validation loss", "val_loss", 4), Column("validation accuracy %", "val_accuracy", 2, 100))


@exclusive
def run(config: SearchConfig) -> dict[str, float]:
    """Train every setting, print the table and write results/.

    Returns:
        ``"<row> <setting>"`` to its validation loss, a mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    name = f"vqa-{config.dataset}"
    sweep = Sweep(
        "experiments.vqa search", config, f"search/{name}", RESULTS, free=("seeds", "max_epochs"), always=("dataset",)
    ).open()
    prepare(config)
    rows: dict[Key, dict[str, Any]] = {
        (row, ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())): {
            **shared_options(config), **POSTERIORS[row], **setting, "test_noise": (0.0,)
        }
        for row, settings in GRIDS.items()
        for setting in settings
    }  # fmt: skip
    seeds = range(config.seed, config.seed + config.seeds)
    trainings = sweep.train(vqa.run, sweep.configs(VQAConfig, rows, seeds))
    losses = {key: fmean(found["val_loss"] for found in trainings.runs(*key)) for key in trainings.rows}
    best = best_settings({key: -loss for key, loss in losses.items()})
    table: list[Row] = [
        {"row": key[0], "setting": key[1]}
        | {column.name: column.cell(trainings.runs(*key)) for column in _COLUMNS}
        | {"best": "best" if key in best else ""}
        for key in losses
    ]
    text = (
        "MCAN on the validation questions at its best epoch, attention at its posterior mean, mean over the "
        "seeds, which are none of the table's. Fixed priors take the setting of contextual ones."
    )
    report = Report(f"Settings tried: questions about photographs ({config.dataset})", f"search-{name}",
                    [Part(text=text, rows=table)])  # fmt: skip
    means = {" ".join(key): loss for key, loss in losses.items()}
    return sweep.finish(report, trainings, means, "validation loss, mean over seeds")
