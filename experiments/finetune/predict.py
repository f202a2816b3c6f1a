"""Predictions of a fine-tuned model for a file of one's own, with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from experiments.datasets.text.glue import GLUE, LabelledPairs
from experiments.datasets.text.squad import SquadName
from experiments.files import UserError, user_errors, write_atomic
from experiments.finetune.config import GlueConfig, PredictConfig
from experiments.finetune.data import EncodedPairs
from experiments.finetune.evaluation import kinds, outputs_of
from experiments.finetune.model import FineTuned, build
from experiments.finetune.own_files import output_file, read_columns
from experiments.finetune.qa.predict import answer_file
from experiments.finetune.training import check_finished, restored
from experiments.harness.folder import saved_options
from pyro_attention.analysis import decompose_uncertainty

__all__ = ["PredictConfig", "load_trained", "predict_file"]


def load_trained(folder: Path, *, device: str = "auto") -> FineTuned:
    """The model of a finished run.

    Raises:
        UserError: The folder holds no such run, or its pretrained model is not there any more.
    """
    return restored(folder, GlueConfig, build, script="experiments.finetune glue", device=device)


def predict_file(config: PredictConfig) -> Path:
    """Write predictions for a file, as the task of the run asks, and return where they are.

    Raises:
        UserError: No such run, or a file that cannot be read or would be lost.
    """
    check_finished(config.run)
    task = saved_options(config.run).get("task")
    names = *GLUE, *get_args(SquadName)
    if task in get_args(SquadName):
        return answer_file(config)
    if task not in names:
        raise UserError(
            f"{config.run / 'config.yaml'}: task is {task!r}, expected one of {', '.join(names)}; name the folder "
            f"of a run of experiments.finetune glue or qa"
        )
    return classify_file(config)


def classify_file(config: PredictConfig) -> Path:
    """Write one line of probabilities and uncertainty for each line of the file, and print where."""
    out = output_file(config, ".tsv")
    trained = load_trained(config.run, device=config.device)
    if config.file.suffix in (".json", ".gz"):
        raise UserError(
            f"{config.file} is no text file, and {config.run} ({trained.config.task}) reads sentences; questions in "
            f"the format of SQuAD need a run of experiments.finetune qa"
        )
    with user_errors(ValueError, OSError):
        text = read_examples(config.file, pairs=GLUE[trained.config.task].layout.second is not None)
    data = EncodedPairs(text, trained.tokenizer, length=trained.config.length)
    outputs = outputs_of(trained, data, kinds(trained.config.guide)[1], num_samples=config.num_samples)
    classes = GLUE[trained.config.task].classes
    tails = torch.tensor([(1 - config.interval) / 2, (1 + config.interval) / 2])
    lines = class_lines(outputs, classes, tails) if classes else grade_lines(outputs, tails)
    content = "".join(f"{line}\n" for line in lines).encode()
    write_atomic(out, lambda file: file.write(content))
    print(f"{len(text)} lines: {out}")
    return out


def read_examples(path: Path, *, pairs: bool) -> LabelledPairs:
    """The sentences of a file, one example a line; the two of a pair have a tab between them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not what it should be, or there are none.
    """
    if pairs:
        rows = read_columns(path, ("first sentence", "second sentence"), "two sentences with a tab between them")
    else:
        rows = read_columns(path, ("sentence",), "one sentence without a tab")
    second = [row[1] for row in rows] if pairs else None
    return LabelledPairs([row[0] for row in rows], second, torch.zeros(len(rows), dtype=torch.int64))


def class_lines(logits: Tensor, classes: tuple[str, ...], tails: Tensor) -> Iterator[str]:
    """Head and lines of a table: class, probabilities, uncertainty in nats, interval of the top class's probability.

    Args:
        logits: ``[S, items, classes]``.
        classes: Names of the classes.
        tails: Probabilities of the two ends of the interval.
    """
    probabilities = logits.softmax(-1)
    mean, parts = probabilities.mean(0), decompose_uncertainty(probabilities)
    top = mean.argmax(-1)
    chosen = probabilities.gather(-1, top.expand(len(logits), -1)[..., None])[..., 0]
    low, high = chosen.quantile(tails.to(chosen.dtype), dim=0)
    yield "\t".join(["class", *classes, "entropy", "mutual_information", "low", "high"])
    columns = (*mean.T, parts.total, parts.mutual_information, low, high)
    for place, row in enumerate(torch.stack(columns, 1).tolist()):
        yield "\t".join([classes[int(top[place])], *(f"{value:.4f}" for value in row)])


def grade_lines(grades: Tensor, tails: Tensor) -> Iterator[str]:
    """Head and lines of a table: mean, standard deviation and interval of grades ``[S, items, 1]``."""
    samples = grades[..., 0]
    low, high = samples.quantile(tails.to(samples.dtype), dim=0)
    yield "\t".join(["grade", "standard_deviation", "low", "high"])
    spread = samples.std(0, correction=0)
    for row in torch.stack([samples.mean(0), spread, low, high], 1).tolist():
        yield "\t".join(f"{value:.4f}" for value in row)
