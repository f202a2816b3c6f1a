"""How rows fare with noise in the training labels, with fewer examples, or with sentences from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.datasets.text.glue import GLUE
from experiments.files import UserError
from experiments.finetune import train
from experiments.finetune.config import GlueConfig, GlueName, GlueStudyConfig, StudyName
from experiments.finetune.out_of_domain import MEASURES
from experiments.finetune.rows import BASELINE, LEGEND, check_rows, kind_of, shown_rows, trained_row
from experiments.finetune.runs import run_options
from experiments.finetune.table import columns
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Cell, Column, Row, columns_of
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS

__all__ = ["STUDIES", "GlueStudyConfig", "Study", "run"]


@dataclass(frozen=True)
class Study:
    """One option of experiments.finetune glue at several levels.

    Attributes:
        title: Title.
        text: What the levels mean.
        task: The task when none is given.
        axis: Head of the levels.
        levels: Options of each level, by its name.
    """

    title: str
    text: str
    task: GlueName
    axis: str
    levels: Mapping[str, Mapping[str, Any]]


_FOREIGN: tuple[GlueName, ...] = ("cola", "rte")

STUDIES: Mapping[StudyName, Study] = {
    "label_noise": Study(
        "Noise in the labels",
        "This share of the training labels is replaced by another class at random (grades: by those of other "
        "examples); the labels of the validation part are right.",
        "rte", "labels replaced",
        {f"{share:.0%}": {"label_noise": share} for share in (0.0, 0.1, 0.2, 0.3)},
    ),
    "train_share": Study(
        "Fewer training examples",
        "This share of the training examples, drawn by the run's seed, with as many epochs.",
        "rte", "training examples",
        {f"{share:.0%}": {"train_share": share} for share in (0.05, 0.1, 0.25, 1.0)},
    ),
    "out_of_domain": Study(
        "Sentences from elsewhere",
        "Test sentences of other tasks, which have no class of this one: the area under the ROC curve of telling them "
        "from the test sentences of the task by their larger uncertainty, .5 being chance.",
        "sst2", "others", {"": {"out_of_domain": _FOREIGN}},
    ),
}  # fmt: skip


@exclusive
def run(config: GlueStudyConfig) -> dict[str, float]:
    """Train what is not trained yet, write the section and print it.

    Returns:
        ``"<row>/<level>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    check_rows(config.rows)
    study = STUDIES[config.name]
    task = config.task or study.task
    if config.name == "out_of_domain" and task != study.task:
        raise UserError(f"task is {task}, expected {study.task}, whose sentences the others are told from")
    name = f"{config.name}-{task}-{Path(config.model).name}"
    rows = {
        (row, level): run_options(config, task, row, **options)
        for level, options in study.levels.items()
        for row in config.rows
    }
    sweep = Sweep(
        f"experiments.finetune studies {config.name}", config, f"studies/{name}", RESULTS, free=("seeds", "rows"),
        always=("rows", "seeds"),
    ).open()  # fmt: skip
    trainings = sweep.train(train.run, sweep.configs(GlueConfig, rows, range(config.seeds)), shown="val_score")
    one = next(iter(trainings.configs.values()))
    share = f"trained on {config.sst2_share:.0%} of its examples, " if task == "sst2" else ""
    text = (
        f"{study.text} {LEGEND} Settings as in the table on GLUE; {share}{one.max_epochs} epochs, {one.num_samples} "
        f"samples. Mean ± standard deviation over {config.seeds} seeds; differences to {BASELINE} of the same seed "
        f"with their 95 % intervals (Student's t), not corrected for the number of comparisons."
    )
    shown = shown_rows(config.rows)
    table = _rows(study, trainings, task, shown)
    report = Report(f"{study.title}: {GLUE[task].title} with {Path(config.model).name}", name, [Part("", text, table)])
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


def _rows(study: Study, trainings: Trainings[GlueConfig], task: GlueName, shown: Sequence[str]) -> list[Row]:
    """One row a level and row of the table, with the difference to the baseline at the same level."""
    rows = list[Row]()
    for level in study.levels:
        reference = [*_areas(BASELINE), *columns(task, kind_of(BASELINE))]
        first = columns_of({level: trainings.runs(BASELINE, level)}, reference)[0]
        for row in shown:
            runs = trainings.runs(trained_row(row), level)
            all_columns = [*_areas(row), *columns(task, kind_of(row))]
            column = next(one for one in all_columns if one.name == first.name)
            difference: Cell = (
                ""
                if row == BASELINE
                else column.difference(runs, trainings.runs(BASELINE, level), BASELINE, other=first)
            )
            cells: Row = ({study.axis: level} if level else {}) | {"row": row}
            cells |= {one.name: one.cell(runs) for one in columns_of({row: runs}, all_columns)}
            rows.append(cells | {f"{first.name} minus {BASELINE}": difference})
    heads = dict.fromkeys(head for row in rows for head in row)
    return [{head: row.get(head, "-") for head in heads} for row in rows]


def _areas(row: str) -> list[Column]:
    """Areas under ROC curves of a row, where there are any."""
    return [
        Column(f"{GLUE[name].title}: AUROC of {measure.replace('_', ' ')}", f"auroc_{kind_of(row)}_{name}_{measure}")
        for name in _FOREIGN
        for measure in MEASURES
    ]
