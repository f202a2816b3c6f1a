"""Tasks of GLUE by rows and seeds: train what is not trained yet, and write the table."""

from __future__ import annotations

from pathlib import Path

from experiments.datasets.text.glue import GLUE
from experiments.finetune import train
from experiments.finetune.config import SMALL_TASKS, GlueConfig, GlueName, GlueTableConfig
from experiments.finetune.evaluation import RISKS
from experiments.finetune.metrics import METRICS, main_metric
from experiments.finetune.rows import (
    BASELINE,
    LEGEND,
    PAPER,
    check_rows,
    kind_of,
    settings_text,
    shown_rows,
    trained_row,
)
from experiments.finetune.runs import example_difference, run_options
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Column, Row, columns_of
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.report.statistics import Difference

__all__ = ["GlueTableConfig", "run"]

_NAMES = {"f1": "F1", "accuracy": "accuracy", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


@exclusive
def run(config: GlueTableConfig) -> dict[str, float]:
    """Train what is not trained yet, write the section and print it.

    Returns:
        ``"<task>/<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    check_rows(config.rows)
    name = table_name(config)
    rows = {(task, row): run_options(config, task, row) for task in config.tasks for row in config.rows}
    sweep = Sweep(
        "experiments.finetune table", config, f"table/{name}", RESULTS, free=("seeds", "tasks", "rows"),
        always=("tasks", "rows", "seeds"),
    ).open()  # fmt: skip
    trainings = sweep.train(train.run, sweep.configs(GlueConfig, rows, range(config.seeds)), shown="val_score")
    shown = shown_rows(config.rows)
    parts = [Part(text=_text(config, trainings)), _summary(config, trainings, shown)]
    parts += [_task_part(task, trainings, shown) for task in config.tasks]
    parts.append(_mean_part(config, trainings))
    titles = ", ".join(GLUE[task].title for task in config.tasks)
    title = f"GLUE ({titles}) with {Path(config.model).name}, fine-tuned with latent attention"
    return sweep.finish(
        Report(title, name, parts), trainings, definitions="mean over seeds; see metrics.json of the runs"
    )


def table_name(config: GlueTableConfig) -> str:
    """Name of the folder and of the section; other tasks than the default ones have their own.

    Example:
        >>> table_name(GlueTableConfig(model="bert")), table_name(GlueTableConfig(model="bert", tasks=("sst2",)))
        ('glue-bert', 'glue-sst2-bert')
    """
    small = set(config.tasks) == set(SMALL_TASKS)
    return "-".join(["glue", *([] if small else config.tasks), Path(config.model).name])


def columns(task: GlueName, kind: str) -> list[Column]:
    """What is shown of a task, the number that rows are compared by first."""
    begin = f"test_{kind}_"
    found = [Column(f"{_NAMES[name]} %", f"{begin}{name}", 2, 100) for name in METRICS[task]]
    found.append(Column(f"{_NAMES[main_metric(task)]} % on validation", "val_score", 2, 100))
    if GLUE[task].regression:
        return [*found, Column("MSE", f"{begin}mse"), Column("NLL", f"{begin}nll"),
                Column("NLL, scaled", f"{begin}scaled_nll")]  # fmt: skip
    scores = {"NLL": "nll", "ECE": "ece", "NLL, scaled": "scaled_nll", "ECE, scaled": "scaled_ece", "AURC": "aurc"}
    found += [Column(head, f"{begin}{name}") for head, name in scores.items()]
    return found + [Column(f"error at {percent} %", f"{begin}risk_{percent}", 2, 100) for percent in RISKS]


def difference(trainings: Trainings[GlueConfig], task: GlueName, row: str) -> Difference:
    """Difference of a row to the baseline in the first metric, seed by seed."""
    ours, baseline = (columns(task, kind_of(name))[0] for name in (row, BASELINE))
    runs, others = (trainings.runs(task, trained_row(name)) for name in (row, BASELINE))
    return ours.difference(runs, others, BASELINE, other=baseline)


def _summary(config: GlueTableConfig, trainings: Trainings[GlueConfig], shown: list[str]) -> Part:
    """The first metric of every task, and the paper's below."""
    rows = list[Row]()
    for row in shown:
        cells: Row = {"row": row}
        for task in config.tasks:
            column = columns(task, kind_of(row))[0]
            cells[_head(task)] = column.cell(trainings.runs(task, trained_row(row)))
        rows.append(cells)
    for row, numbers in PAPER.items():
        rows.append({"row": f"paper: {row}"} | {_head(task): f"{numbers[task]:.1f}" for task in config.tasks})
    text = (
        "The paper fine-tuned ALBERT-base, which is another and larger model, and does not name its metrics: compare "
        "the differences, not the numbers."
    )
    return Part("First metric of every task", text, rows)


def _task_part(task: GlueName, trainings: Trainings[GlueConfig], shown: list[str]) -> Part:
    """All metrics of a task, with the difference of the first one to the baseline."""
    rows, metric = list[Row](), main_metric(task)
    heads = {column.name for column in columns_of(
        {row: trainings.runs(task, trained_row(row)) for row in shown}, columns(task, "mean"))}  # fmt: skip
    for row in shown:
        cells: Row = {"row": row}
        runs = trainings.runs(task, trained_row(row))
        for place, column in enumerate(columns(task, kind_of(row))):
            if column.name in heads:
                cells[column.name] = column.cell(runs)
            if place == 0:
                cells |= _differences(trainings, task, row, metric)
        rows.append(cells)
    return Part(GLUE[task].title, rows=rows)


def _differences(trainings: Trainings[GlueConfig], task: GlueName, row: str, metric: str) -> Row:
    heads = f"minus {BASELINE}, by seeds", f"minus {BASELINE}, by examples"
    if row == BASELINE:
        return dict.fromkeys(heads, "")
    keys = (task, trained_row(row)), (task, BASELINE)
    resampled = example_difference(trainings, *keys, metric, (kind_of(row), kind_of(BASELINE)), factor=100)
    return dict(zip(heads, (difference(trainings, task, row), resampled), strict=True))


def _mean_part(config: GlueTableConfig, trainings: Trainings[GlueConfig]) -> Part:
    """The first metric with attention at its mean, which costs one pass."""
    rows = [
        {"row": row} | {_head(task): columns(task, "mean")[0].cell(trainings.runs(task, row)) for task in config.tasks}
        for row in config.rows
    ]
    return Part("Attention at its mean", "One pass of the network, without samples.", rows)


def _head(task: GlueName) -> str:
    return f"{GLUE[task].title}: {_NAMES[main_metric(task)]} %"


def _text(config: GlueTableConfig, trainings: Trainings[GlueConfig]) -> str:
    one = next(iter(trainings.configs.values()))
    settings = f" {settings_text(config.rows)}".rstrip()
    share = f" SST-2 is trained on {config.sst2_share:.0%} of its examples." if "sst2" in config.tasks else ""
    comparisons = len(config.tasks) * len(config.rows)
    return (
        f"{LEGEND} {one.max_epochs} epochs of batches of {one.batch_size}, AdamW with learning rate "
        f"{one.learning_rate:g} (prior networks {one.prior_learning_rate:g}), linear warm-up over a tenth of the steps "
        f"and linear decay, at most {one.length} tokens, pooling {one.pooling}, precision {one.precision}, "
        f"{one.num_samples} samples.{settings}{share} RTE and CoLA are tested on GLUE's development parts, as their "
        f"test labels are not public, MRPC, STS-B and SST-2 on the test parts of their publishers; the temperature is "
        f"chosen on other examples, held out of the training part where the task has no other part.\n\n"
        f"Mean ± standard deviation over {config.seeds} seeds. Differences to {BASELINE} of the same seed have two "
        f"95 % intervals: Student's t over the seeds, and a bootstrap over the test examples for the networks that "
        f"there are. Neither is corrected for the number of comparisons, {comparisons}. Error at 80 %: of the 80 % of "
        f"the test examples with the most confident predictions. Scaled: after temperature scaling (grades: with the "
        f"best standard deviation) on the validation part."
    )
