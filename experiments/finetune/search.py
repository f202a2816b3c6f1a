"""Choose the settings of the rows of the table, on validation parts alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from experiments.datasets.text.glue import GLUE
from experiments.finetune import train
from experiments.finetune.config import GlueConfig, GlueSearchConfig
from experiments.finetune.rows import GRIDS, check_rows
from experiments.finetune.runs import run_options
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, best_settings
from experiments.report.columns import Row
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS

__all__ = ["GlueSearchConfig", "run"]


@exclusive
def run(config: GlueSearchConfig) -> dict[str, float]:
    """Train every setting, print the table and save it.

    Returns:
        ``"<row> <setting>"`` to the mean of its validation scores over tasks and seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    check_rows(config.rows)
    name = f"glue-{Path(config.model).name}"
    sweep = Sweep(
        "experiments.finetune search", config, f"search/{name}", RESULTS, free=("rows",), always=("tasks",)
    ).open()
    rows = {
        (row, _text(setting), task): run_options(config, task, row, **setting) | {"num_samples": 2}
        for row in config.rows
        for setting in GRIDS.get(row, [{}])
        for task in config.tasks
    }
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    trainings = sweep.train(train.run, sweep.configs(GlueConfig, rows, seeds), shown="val_score")
    found = {
        key: {task: fmean(run["val_score"] for run in trainings.runs(*key, task)) for task in config.tasks}
        for key in dict.fromkeys((row, setting) for row, setting, _ in trainings.rows)
    }
    scores = {key: fmean(by_task.values()) for key, by_task in found.items()}
    best = best_settings(scores)
    table: list[Row] = [
        {"row": key[0], "setting": key[1] or "-"}
        | {f"{GLUE[task].title} %": f"{100 * score:.2f}" for task, score in found[key].items()}
        | {"mean": f"{100 * scores[key]:.2f}", "best": "best" if key in best else ""}
        for key in scores
    ]
    text = (
        f"First metric of each task on its validation part after the last epoch, means over {config.seeds} seeds from "
        f"{config.first_seed} on, which are none of the table's. The setting of a row with the best mean over the "
        f"tasks is meant for the table."
    )
    report = Report(f"Settings tried (GLUE with {Path(config.model).name})", f"search-{name}", [Part("", text, table)])
    means = {" ".join(filter(None, key)): score for key, score in scores.items()}
    return sweep.finish(report, trainings, means, "validation score, mean over tasks and seeds")


def _text(setting: dict[str, float]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in setting.items())
