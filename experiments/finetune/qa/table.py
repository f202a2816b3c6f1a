"""Answers to questions by rows and seeds: train what is not trained yet, and write the table."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.finetune.qa import train
from experiments.finetune.qa.config import QaConfig, QaTableConfig
from experiments.finetune.rows import (
    BASELINE,
    LEGEND,
    PAPER_ANSWERS,
    check_rows,
    kind_of,
    settings_text,
    shown_rows,
    trained_row,
)
from experiments.finetune.runs import resampled_difference, resamples, row_options, saved_predictions
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Sweep, Trainings
from experiments.report.columns import Column, Row
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS

__all__ = ["QaTableConfig", "run"]

_TITLES = {"v1": "SQuAD 1.1", "v2": "SQuAD 2.0"}
_METRICS = {"EM": "exact", "F1": "f1"}


@exclusive
def run(config: QaTableConfig) -> dict[str, float]:
    """Train what is not trained yet, write the section and print it.

    Returns:
        ``"<row>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`.
    """
    check_rows(config.rows)
    model = Path(config.model).name
    name = f"squad-{config.task}-{model}"
    asked = {"task": config.task, "train_share": config.train_share}
    rows = {(row,): row_options(config, row) | asked for row in config.rows}
    sweep = Sweep(
        f"experiments.finetune qa-table {config.task}", config, f"table/{name}", RESULTS, free=("seeds", "rows"),
        always=("rows", "seeds"),
    ).open()  # fmt: skip
    trainings = sweep.train(train.run, sweep.configs(QaConfig, rows, range(config.seeds)), shown="val_score")
    shown = shown_rows(config.rows)
    mean = [
        {"row": row} | {column.name: column.cell(trainings.runs(row)) for column in columns("mean")[: len(_METRICS)]}
        for row in config.rows
    ]
    parts = [
        Part(text=_text(config, trainings)),
        Part("Scores", rows=_scores(config, trainings, shown)),
        Part(f"Differences to {BASELINE}", rows=[_differences(trainings, row) for row in shown if row != BASELINE]),
        Part("Attention at its mean", "One pass of the network, without samples.", mean),
    ]
    title = f"{_TITLES[config.task]} with {model}, fine-tuned with latent attention"
    return sweep.finish(
        Report(title, name, parts), trainings, definitions="mean over seeds; see metrics.json of the runs"
    )


def columns(kind: str) -> list[Column]:
    """What is shown of a kind of prediction, exact match and F1 first."""
    begin = f"test_{kind}_"
    percent = _METRICS | {f"HasAns {head}": f"has_answer_{metric}" for head, metric in _METRICS.items()}
    percent["NoAns"] = "no_answer_accuracy"
    areas = {"AUROC, entropy": "auroc_entropy", "AUROC, mutual information": "auroc_mutual_information"}
    found = [Column(f"{head} %", f"{begin}{metric}", 2, 100) for head, metric in percent.items()]
    found += [Column(head, f"{begin}{metric}") for head, metric in areas.items()]
    return [*found, Column("F1 % on validation", "val_score", 2, 100)]


def _scores(config: QaTableConfig, trainings: Trainings[QaConfig], shown: list[str]) -> list[Row]:
    """All scores of every row, and below them the paper's."""
    rows: list[Row] = [
        {"row": row} | {one.name: one.cell(trainings.runs(trained_row(row))) for one in columns(kind_of(row))}
        for row in shown
    ]
    for row, numbers in PAPER_ANSWERS.items():
        scores = zip(_METRICS, numbers[config.task], strict=True)
        rows.append({"row": f"paper: {row}"} | {f"{head} %": f"{score:.2f}" for head, score in scores})
    heads = [head for head in rows[0] if any(row.get(head, "-") != "-" for row in rows)]
    return [{head: row.get(head, "-") for head in heads} for row in rows]


def _differences(trainings: Trainings[QaConfig], row: str) -> Row:
    """Exact match and F1 of a row less those of the baseline, with intervals over seeds and over questions."""
    cells: Row = {"row": row}
    keys, kinds = (trained_row(row), BASELINE), (kind_of(row), kind_of(BASELINE))
    for place, (head, metric) in enumerate(_METRICS.items()):
        ours, baseline = (columns(kind)[place] for kind in kinds)
        resampled = resampled_difference(
            trainings, keys[:1], keys[1:], partial(_resampled, metric=metric), kinds, factor=100
        )
        runs, others = map(trainings.runs, keys)
        cells[f"minus {BASELINE} ({head} %)"] = ours.difference(runs, others, BASELINE, other=baseline)
        cells[f"minus {BASELINE} ({head} %), by questions"] = resampled
    return cells


def _resampled(path: Path, kind: str, *, metric: str) -> NDArray[np.float64]:
    """Mean of a score over the questions of every resample."""
    with saved_predictions(path) as arrays:
        scores = arrays[f"{kind}_{metric}"]
        if scores.ndim != 1 or scores.dtype.kind != "f":
            raise ValueError(f"scores {scores.dtype}{list(scores.shape)}")
        return np.asarray(resamples(len(scores)) @ scores / len(scores))


def _text(config: QaTableConfig, trainings: Trainings[QaConfig]) -> str:
    one, metrics = next(iter(trainings.configs.values())), next(iter(trainings.metrics.values()))
    counts = {
        part: f"{metrics[f'{part}_questions']:.0f} questions"
        + (f" ({metrics[f'{part}_without_answer']:.0f} without an answer)" if config.task == "v2" else "")
        for part in ("train", "val", "test")
    }
    share = f", {config.train_share:.0%} of the training questions, drawn by the seed" if config.train_share < 1 else ""
    settings = f" {settings_text(config.rows)}".rstrip()
    threshold = (
        " Whether a question gets no answer is decided by a threshold, that of the best F1 on the validation part."
        if config.task == "v2"
        else ""
    )
    comparisons = 2 * (len(shown_rows(config.rows)) - 1)
    return (
        f"{LEGEND} {one.max_epochs} epochs of batches of {one.batch_size} windows of at most {one.length} tokens "
        f"(stride {one.stride}), AdamW with learning rate {one.learning_rate:g} (prior networks "
        f"{one.prior_learning_rate:g}), linear warm-up over a tenth of the steps and linear decay, precision "
        f"{one.precision}, {one.num_samples} samples.{settings}\n\n"
        f"Trained on {counts['train']}{share}; validation: {counts['val']}; tested on {counts['test']} of the "
        f"development file. The parts have different articles; the network of the last epoch is kept.{threshold} EM "
        f"and F1 are those of the official evaluation. The paper fine-tuned ALBERT-base, a larger model, on all of "
        f"SQuAD: compare the differences, not the numbers. AUROC: of telling answers that are not exactly right by "
        f"their larger uncertainty, .5 being chance.\n\n"
        f"Mean ± standard deviation over {config.seeds} seeds. Differences to {BASELINE} of the same seed have two "
        f"95 % intervals: Student's t over the seeds, and a bootstrap over the test questions for the networks that "
        f"there are, as if questions on one article were independent. Neither is corrected for the number of "
        f"comparisons, {comparisons}."
    )
