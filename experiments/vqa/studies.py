"""Fewer training questions, and whether uncertainty tells wrong answers from right ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.arrays import read_arrays
from experiments.files import UserError, reading, user_errors
from experiments.harness.folder import exclusive
from experiments.harness.sweep import Key, Sweep, Trainings
from experiments.report.columns import Column, Row, columns_of
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS
from experiments.vqa import train as vqa
from experiments.vqa.config import StudiesConfig, VQAConfig
from experiments.vqa.data import Answered, load_questions, load_words
from experiments.vqa.evaluation import UNCERTAINTIES, accuracies, auroc
from experiments.vqa.rows import ACCURACY, BLOCKS, NLL
from experiments.vqa.table import prepare, shared_options
from pyro_attention.analysis import decompose_uncertainty

__all__ = ["bootstrap_text", "run"]

ROWS = ("soft", "WC")
RESAMPLES = 300
_COLUMNS = (ACCURACY, NLL, Column("ECE", "test_ece/mean"), Column("ECE, scaled", "test_scaled_ece/mean"))
_NAMES = {"mc_dropout": "dropout", "attention": "attention", "both": "attention and dropout"}


@exclusive
def run(config: StudiesConfig) -> dict[str, float]:
    """Train what is not trained yet, print the tables, and write results/.

    Returns:
        ``"<row>/<share>/<metric>"`` to its mean over seeds.

    Raises:
        UserError, KeyboardInterrupt: As the methods of :class:`Sweep`; no shares, a share of 0, or none of 1.
    """
    if not config.shares or min(config.shares) == 0 or max(config.shares) < 1:
        raise UserError(
            f"shares are {list(config.shares)}, expected shares above 0, and 1 among them, where all seeds of the "
            f"ensemble have the same questions and choose from the same answers"
        )
    name = f"vqa-studies-{config.dataset}"
    sweep = Sweep(
        "experiments.vqa studies", config, f"studies/{name}", RESULTS, free=("seeds", "shares", "max_epochs"),
        always=("dataset", "seeds"),
    ).open()  # fmt: skip
    prepare(config)
    shared = shared_options(config)
    rows: dict[Key, dict[str, Any]] = {
        (row, share): {**shared, **BLOCKS["bam"].rows[row], "train_share": share, "test_noise": (0.0,)}
        for share in config.shares
        for row in ROWS
    }
    trainings = sweep.train(vqa.run, sweep.configs(VQAConfig, rows, range(config.seed, config.seed + config.seeds)))
    fewer = Part("Fewer training questions", _FEWER.format(config.seeds), rows=_share_rows(trainings))
    wrong = Part("Does uncertainty tell wrong answers from right ones?", _WRONG, rows=_wrong_rows(trainings))
    parts = [fewer, wrong]
    if absent := _absent_rows(trainings):
        parts.append(Part("Questions about what is not in the scene", _ABSENT, rows=absent))
    report = Report(f"Fewer questions, and uncertainty: {config.dataset}", name, parts)
    return sweep.finish(report, trainings, definitions="mean over seeds; see metrics.json of the runs")


_FEWER = (
    "MCAN, soft and WC (Weibull posterior, contextual prior), trained on shares of the training questions, which the "
    "seed draws. Attention at its posterior mean. Mean ± standard deviation over {} seeds; the difference to soft is "
    "taken seed by seed, with its 95 % confidence interval."
)
_WRONG = (
    "Area under the ROC curve: .5 is chance, 1 tells every wrong answer of the test from every right one. Mean over "
    f"seeds with the 95 % interval of {RESAMPLES} bootstrap samples of the test questions, the same ones in all rows; "
    "the seeds are fixed, so the interval says nothing of other seeds. An ensemble is the mean probability of all "
    "seeds, without dropout, and there is one. Trained on all questions."
)
_ABSENT = (
    "Area under the ROC curve for questions whose answer is not in the scene, against those of the same form that have "
    "one; mean ± standard deviation over seeds. None of them was trained on."
)


def _share_rows(trainings: Trainings[VQAConfig]) -> list[Row]:
    rows, by_row = [], {row: trainings.runs(*row) for row in trainings.rows}
    shown = columns_of({str(row): runs for row, runs in by_row.items()}, _COLUMNS)
    for (row, share), runs in by_row.items():
        cells: Row = {"questions": f"{share:.0%}", "row": row} | {column.name: column.cell(runs) for column in shown}
        cells["number"] = f"{runs[0]['train_questions']:.0f}"
        soft = by_row[ROWS[0], share]
        cells["accuracy minus soft"] = "" if row == ROWS[0] else ACCURACY.difference(runs, soft, ROWS[0])
        rows.append(cells)
    return rows


def _absent_rows(trainings: Trainings[VQAConfig]) -> list[Row]:
    rows = []
    for row in ROWS:
        runs = trainings.runs(row, 1.0)
        for kind, noise in _NAMES.items():
            columns = [Column(name.replace("_", " "), f"test_absent_auroc_{name}/{kind}") for name in UNCERTAINTIES]
            if columns[0].values(runs):
                rows.append({"row": f"{row}: {noise}", **{column.name: column.cell(runs) for column in columns}})
    return rows


def _wrong_rows(trainings: Trainings[VQAConfig]) -> list[Row]:
    """Mean areas under the ROC curve over seeds, with bootstrap intervals over questions."""
    rows = []
    for row in ROWS:
        configs = [trainings.configs[row, 1.0, seed] for seed in trainings.seeds]
        found: dict[str, dict[str, list[tuple[Tensor, Tensor]]]] = {}
        for predicted, uncertainty, values, wrong in _judged(configs):
            found.setdefault(predicted, {}).setdefault(uncertainty, []).append((values, wrong))
        for predicted, uncertainties in found.items():
            cells: Row = {"row": f"{row}: {predicted}"}
            cells |= {
                name.replace("_", " "): bootstrap_text(uncertainties[name]) if name in uncertainties else "-"
                for name in UNCERTAINTIES
            }
            rows.append(cells)
    return rows


def _judged(configs: Sequence[VQAConfig]) -> Iterator[tuple[str, str, Tensor, Tensor]]:
    """Kinds of prediction and of uncertainty, its values and which answers are wrong, of every seed and of all."""
    with user_errors(ValueError, OSError):
        test = load_questions(configs[0])["test"]
    members: list[Tensor] = []
    for config in configs:
        folder = vqa.run_folder(config)
        arrays, words = _predictions(folder), load_words(folder)
        data = Answered(test, words, config.likelihood)
        members.append(arrays["mean"])
        for kind, noise in _NAMES.items():
            if kind in arrays:
                wrong = accuracies(arrays[kind], data) < 0.5
                for name in UNCERTAINTIES:
                    if f"{name}_{kind}" in arrays:
                        yield noise, name, arrays[f"{name}_{kind}"], wrong
    if len(members) > 1:
        samples = torch.stack(members)
        parts, wrong = decompose_uncertainty(samples), accuracies(samples.mean(0), data) < 0.5
        yield f"ensemble of {len(members)} seeds", "entropy", parts.total, wrong
        yield f"ensemble of {len(members)} seeds", "mutual_information", parts.mutual_information, wrong


def _predictions(folder: Path) -> Mapping[str, Tensor]:
    path, again = folder / "predictions.npz", "train again with --overwrite"
    with reading(path, "an array mean", again):
        arrays = {name: torch.from_numpy(values) for name, values in read_arrays(path, again).items()}
        if "mean" not in arrays:
            raise ValueError("it has none")
        return arrays


def bootstrap_text(judged: Sequence[tuple[Tensor, Tensor]]) -> str:
    """Mean over seeds of the area under the ROC curve, with its bootstrap interval over questions; "-" without any.

    Args:
        judged: For every seed the uncertainty of the questions, and whether the answers are wrong.
    """
    judged = [(values, wrong) for values, wrong in judged if 0 < wrong.sum() < len(wrong)]
    if not judged:
        return "-"
    generator, count = torch.Generator().manual_seed(0), len(judged[0][0])
    found = []
    for number in range(RESAMPLES + 1):
        places = torch.randint(count, (count,), generator=generator) if number else torch.arange(count)
        drawn = [(values[places], wrong[places].long()) for values, wrong in judged]
        areas = [auroc(values, wrong) for values, wrong in drawn if 0 < wrong.sum() < count]
        if areas:  # of few questions, a sample may have right answers alone
            found.append(sum(areas) / len(areas))
    low, high = torch.tensor(found[1:]).quantile(torch.tensor([0.025, 0.975])).tolist()
    return f"{found[0]:.3f} [{low:.3f}, {high:.3f}]"
