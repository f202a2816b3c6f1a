"""Predictions of a fine-tuned model for a file of one's own, with their uncertainty."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from experiments.datasets.text.glue import GLUE, LabelledPairs
from experiments.datasets.text.parallel_text import read_lines
from experiments.datasets.text.squad import Question, SquadName, read_squad
from experiments.files import UserError, user_errors, write_atomic
from experiments.finetune.config import PredictConfig
from experiments.finetune.data import EncodedPairs
from experiments.finetune.evaluation import kinds, outputs_of
from experiments.finetune.model import Tuned
from experiments.finetune.qa.answers import Answered
from experiments.finetune.qa.evaluation import answers_of
from experiments.finetune.qa.train import QaTask
from experiments.finetune.qa.windows import Windows
from experiments.finetune.train import FineTuneTask, GlueTask
from experiments.harness.folder import saved_config, saved_options
from experiments.harness.results import read_metrics
from experiments.harness.weights import weights_file
from experiments.report.columns import Row
from experiments.report.tables import as_table
from experiments.run import load_trained
from pyro_attention.analysis import decompose_uncertainty

__all__ = ["finished_run", "predict_file", "read_columns", "read_questions"]

Network = TypeVar("Network", bound=Tuned[Any, Any])

_BEST = 3  # answers of a question
_SPANS = 9  # of each window that these are chosen from, as several may be the same text
_SHOWN, _WIDTH = 20, 50  # questions on the terminal, and letters of each text


def predict_file(config: PredictConfig) -> Path:
    """Write predictions for a file, as the task of the run asks, and return where they are.

    Raises:
        UserError: No such run, or a file that cannot be read or would be lost.
    """
    for path in (config.run / "config.yaml", weights_file(config.run)):
        if not path.is_file():
            raise UserError(
                f"{config.run} holds no finished run with its weights ({path.name} is missing; runs of tables keep "
                f"none); train one: python -m experiments.finetune glue TASK --model FOLDER --out RUN (for questions: "
                f"qa v1 or v2)"
            )
    task = saved_options(config.run).get("task")
    names = *GLUE, *get_args(SquadName)
    if task not in names:
        raise UserError(
            f"{config.run / 'config.yaml'}: task is {task!r}, expected one of {', '.join(names)}; name the folder "
            f"of a run of experiments.finetune glue or qa"
        )
    return answer_file(config) if task in get_args(SquadName) else classify_file(config)


def finished_run(task: FineTuneTask[Any, Any, Network], folder: Path, **changes: Any) -> Network:
    """The network of the run in a folder, with changes of its configuration.

    Raises:
        UserError: The folder holds no such run, or its pretrained model is not there any more.
    """
    return load_trained(task, saved_config(folder, task.config, script=task.script, **changes))


def output_file(config: PredictConfig, ending: str) -> Path:
    """The file that predictions go into; beside the file with the texts, with this ending, when none is named.

    Raises:
        UserError: It is there already, and is not to be replaced.
    """
    out = config.out or config.file.with_name(f"{config.file.name}{ending}")
    if out.exists() and not config.overwrite:
        raise UserError(f"{out} is there already; pass --overwrite to replace it, or choose another --out")
    return out


def read_columns(path: Path, names: Sequence[str], expected: str) -> list[list[str]]:
    """The texts of every line, with single blanks; tabs stand between those of a line.

    Args:
        path: The file.
        names: What the texts of a line are, in their order.
        expected: What a line should be, to tell in errors.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not what it should be, or there are none.
    """
    rows = list[list[str]]()
    for number, line in enumerate(read_lines(path), 1):
        try:
            cells = [" ".join(cell.split()) for cell in line.decode().split("\t")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: line {number} is not UTF-8; save the file as UTF-8") from error
        if len(cells) != len(names):
            raise ValueError(
                f"{path}: line {number} has {len(cells) - 1} tabs, expected {len(names) - 1}: {expected}; mend the line"
            )
        if not all(cells):
            raise ValueError(
                f"{path}: line {number} has an empty {names[cells.index('')]}, expected {expected}; mend or remove the "
                f"line"
            )
        rows.append(cells)
    if not rows:
        raise ValueError(f"{path} is empty, expected {expected} a line")
    return rows


# Sentences


def classify_file(config: PredictConfig) -> Path:
    """Write one line of probabilities and uncertainty for each line of the file, and print where."""
    out = output_file(config, ".tsv")
    trained = finished_run(GlueTask(), config.run, device=config.device)
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


# Questions


def answer_file(config: PredictConfig) -> Path:
    """Write one line of JSON for each question of the file, and print the first ones and where all are.

    Raises:
        UserError: No such run, or a file that cannot be read or would be lost.
    """
    out = output_file(config, ".jsonl")
    trained = finished_run(QaTask(), config.run, device=config.device, num_samples=config.num_samples)
    kind = kinds(trained.config.guide)[1]
    threshold = _threshold(config.run, kind) if trained.config.task == "v2" else None
    with user_errors(ValueError, OSError):
        data = Windows(read_questions(config.file), trained.tokenizer, trained.config)
    entries = _entries(data.questions, answers_of(trained, data, kind, spans=_SPANS), threshold)
    content = "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in entries).encode()
    write_atomic(out, lambda file: file.write(content))
    print(as_table([_row(entry) for entry in entries[:_SHOWN]]))
    more = f", of which the first {_SHOWN} are shown" if len(entries) > _SHOWN else ""
    print(f"\n{len(entries)} questions{more}: {out}")
    return out


def read_questions(path: Path) -> list[Question]:
    """The questions of a file in the format of SQuAD, or of a text file: a context, a tab and a question a line.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is neither, or has an empty context or question.
    """
    if path.name.endswith((".json", ".json.gz")):
        questions = read_squad(path, answers=False)
        empty = next((question for question in questions if not question.text.strip()), None)
        if empty is not None:
            raise ValueError(f"{path}: question {empty.id!r} is empty, expected a text; write one, or remove the entry")
        return questions
    expected = "a context and a question with a tab between them, or a file .json in the format of SQuAD"
    rows = read_columns(path, ("context", "question"), expected)
    return [Question(str(number), "", context, asked, ()) for number, (context, asked) in enumerate(rows, 1)]


def _threshold(folder: Path, kind: str) -> float:
    """What no answer needs to be given, by the validation part of the run."""
    threshold = (read_metrics(folder) or {}).get(f"{kind}_threshold", math.nan)
    if math.isnan(threshold):
        raise UserError(
            f"{folder / 'metrics.json'} has no {kind}_threshold, expected the no-answer threshold of a finished run; "
            f"train it to its end by --resume, or put the file back"
        )
    return threshold


def _entries(questions: Sequence[Question], answered: Answered, threshold: float | None) -> list[dict[str, Any]]:
    """What is written of every question; no answer is given above the threshold, where there is one."""
    entries = []
    for place, question in enumerate(questions):
        best = [{"answer": text, "probability": math.exp(score)} for text, score in answered.ranked[place][:_BEST]]
        entry = {"id": question.id, "question": question.text} | best[0]
        if threshold is not None:
            no_answer = answered.nothing[place].exp().item()
            if answered.no_answer[place].double().item() > threshold:
                entry |= {"answer": "", "probability": no_answer}
            entry["no_answer"] = no_answer
        entry |= {name: getattr(answered, name)[place].item() for name in ("entropy", "mutual_information")}
        entries.append(entry | {"best": best})
    return entries


def _row(entry: Mapping[str, Any]) -> Row:
    """What the terminal shows of a question."""
    names = [name for name in ("probability", "no_answer", "mutual_information") if name in entry]
    texts = {name: _short(entry[name]) for name in ("question", "answer")}
    return texts | {name.replace("_", " "): f"{entry[name]:.3f}" for name in names}


def _short(text: str) -> str:
    """A text that fits the table, without signs that move the cursor of the terminal."""
    shown = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in shown)
