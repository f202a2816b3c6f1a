"""Predictions of a fine-tuned model for a text file, with their uncertainty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.text.glue import GLUE, LabelledPairs
from experiments.datasets.text.parallel_text import read_lines
from experiments.files import UserError, user_errors, write_atomic
from experiments.finetune.config import GlueConfig, PredictConfig
from experiments.finetune.data import EncodedPairs
from experiments.finetune.evaluation import kinds, outputs_of
from experiments.finetune.model import FineTuned, build
from experiments.harness.folder import saved_config
from experiments.harness.training import load_best
from experiments.harness.weights import weights_file
from pyro_attention.analysis import decompose_uncertainty

__all__ = ["PredictConfig", "load_trained", "predict_file"]

_SCRIPT = "experiments.finetune glue"


def load_trained(folder: Path, *, device: str = "auto") -> FineTuned:
    """The model of a finished run.

    Raises:
        UserError: The folder holds no such run, or its pretrained model is not there any more.
    """
    for path in (folder / "config.yaml", weights_file(folder)):
        if not path.is_file():
            raise UserError(
                f"{folder} holds no finished run with its weights ({path.name} is missing); train one: python -m "
                f"{_SCRIPT} TASK --model FOLDER --out {folder}"
            )
    with user_errors(ValueError, OSError, TypeError):
        trained = build(saved_config(folder, GlueConfig, script=_SCRIPT, device=device))
        load_best(trained.module, folder)
    return trained


def predict_file(config: PredictConfig) -> Path:
    """Write one line of probabilities and uncertainty for each line of the file, and print where."""
    out = config.out or config.file.with_name(f"{config.file.name}.tsv")
    if out.exists() and not config.overwrite:
        raise UserError(f"{out} is there already; pass --overwrite to replace it, or choose another --out")
    trained = load_trained(config.run, device=config.device)
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
    expected = "two sentences with a tab between them" if pairs else "one sentence without a tab"
    rows = list[list[str]]()
    for number, line in enumerate(read_lines(path), 1):
        try:
            cells = [" ".join(cell.split()) for cell in line.decode().split("\t")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: line {number} is not UTF-8; save the file as UTF-8") from error
        if len(cells) != 1 + pairs or not all(cells):
            count = sum(map(bool, cells))
            raise ValueError(
                f"{path}: line {number} has {count} sentences in {len(cells)} columns; expected {expected}"
            )
        rows.append(cells)
    if not rows:
        raise ValueError(f"{path} is empty; expected {expected} a line")
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
