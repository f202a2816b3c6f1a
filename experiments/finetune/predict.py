"""Predictions of a fine-tuned model for your own file, with their uncertainty."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import torch
from torch import Tensor

from experiments.data.text.glue import GLUE, LabeledPairs
from experiments.data.text.race import read_race
from experiments.data.text.squad import Question, read_squad
from experiments.files import UserError, check_outputs, text_lines, user_errors, write_text
from experiments.finetune.choices import EncodedChoices, RaceTask
from experiments.finetune.config import PredictConfig
from experiments.finetune.glue import EncodedPairs, GlueTask, outputs_of
from experiments.finetune.model import kinds
from experiments.finetune.questions import QaTask, Windows, answers_of
from experiments.folder import read_metrics, saved_config, saved_options
from experiments.run import load_trained
from pyro_attention.analysis import decompose_uncertainty
from pyro_attention.analysis.inputs import equal_tailed


def predict_file(config: PredictConfig) -> Path:
    """Write predictions for a file, in the format of the run's task, and return the path of the written file.

    Raises:
        UserError: No such run, a file that cannot be read, or a written file that exists.
    """
    options, path = saved_options(config.run), config.run / "config.yaml"
    name = "qa" if "stride" in options else "race" if "level" in options else options.get("task")
    makers: dict[str, tuple[Any, Callable[[Any, Path], Iterator[str]]]] = {
        "qa": (QaTask(), answer_lines),
        "race": (RaceTask(), choice_lines),
        **dict.fromkeys(GLUE, (GlueTask(), label_lines)),
    }
    if name not in makers:
        raise UserError(
            f"{path}: task is {name!r}; expected the folder of a run of experiments.finetune glue, qa or race"
        )
    task, make_lines = makers[name]
    ending = ".tsv" if make_lines is label_lines else ".jsonl"
    out = config.out or config.file.with_name(config.file.name + ending)
    check_outputs([out], [config.file], overwrite=config.overwrite)
    changes = {"device": config.device, "num_samples": config.num_samples}
    trained = load_trained(task, saved_config(config.run, task.config, script=task.script, **changes))
    with user_errors(ValueError, OSError):
        lines = [*make_lines(trained, config.file)]
    write_text(out, "".join(f"{line}\n" for line in lines))
    counted = f"{len(lines) - 1} lines" if make_lines is label_lines else f"{len(lines)} questions"
    print(f"{counted}: {out}")
    return out


def read_columns(path: Path, *names: str) -> list[list[str]]:
    """Return the cells of every line, which tabs separate, with single blanks.

    Raises:
        ValueError: A line does not have one cell for each of the names, or the file has no line.
    """
    expected = f"a {' and a '.join(names)}{' with a tab between them' * (len(names) > 1)} in every line"
    lines = text_lines(path, "save it as UTF-8", expected=expected)
    rows = [[" ".join(cell.split()) for cell in line.split("\t")] for line in lines]
    for number, row in enumerate(rows or [[]], 1):
        if len(row) != len(names) or not all(row):
            raise ValueError(f"{path}: line {number} has the cells {row}; expected {expected}. Correct the line")
    return rows


def label_lines(trained: Any, file: Path) -> Iterator[str]:
    """Return the head and the lines of a table with the classes or grades of the sentences of a file."""
    of_task = GLUE[trained.config.task]
    pairs = of_task.second is not None
    first, *second = zip(*read_columns(file, *(("sentence",) * (1 + pairs))), strict=True)
    text = LabeledPairs(list(first), list(second[0]) if pairs else None, torch.zeros(len(first), dtype=torch.int64))
    data = EncodedPairs(text, trained.tokenizer, length=trained.config.length)
    outputs = outputs_of(trained, data, kinds(trained.config.guide)[1], num_samples=trained.config.num_samples)
    return class_lines(outputs, of_task.classes) if of_task.classes else grade_lines(outputs[..., 0])


def class_lines(logits: Tensor, classes: Sequence[str]) -> Iterator[str]:
    """Yield class, probabilities, uncertainty (nats) and 90 % interval of the top probability; logits [S, items, C]."""
    probabilities = logits.softmax(-1)
    mean, parts = probabilities.mean(0), decompose_uncertainty(probabilities)
    top = mean.argmax(-1)
    _, low, high = equal_tailed(probabilities.gather(-1, top.expand(len(logits), -1)[..., None])[..., 0], 0.9)
    yield "\t".join(["class", *classes, "entropy", "mutual_information", "low", "high"])
    columns = (*mean.T, parts.total, parts.mutual_information, low, high)
    for index, row in zip(top.tolist(), torch.stack(columns, 1).tolist(), strict=True):
        yield "\t".join([classes[index], *(f"{value:.4f}" for value in row)])


def grade_lines(grades: Tensor) -> Iterator[str]:
    """Yield mean, standard deviation and 90 % interval of grades ``[S, items]``."""
    yield "\t".join(["grade", "standard_deviation", "low", "high"])
    mean, low, high = equal_tailed(grades, 0.9)
    columns = mean, grades.std(0, correction=0), low, high
    for row in torch.stack(columns, 1).tolist():
        yield "\t".join(f"{value:.4f}" for value in row)


def answer_lines(trained: Any, file: Path) -> Iterator[str]:
    """Yield a JSON object for each question of a file; above the threshold of SQuAD 2.0 no answer is given."""
    kind, threshold = kinds(trained.config.guide)[1], None
    if trained.config.version == "2.0":
        threshold = (read_metrics(trained.config.out) or {}).get(f"{kind}_threshold")
        if threshold is None:
            raise ValueError(f"{trained.config.out} has no {kind}_threshold; finish the training with --resume")
    data = Windows(read_questions(file), trained.tokenizer, trained.config)
    answers = answers_of(trained, data, kind)
    for index, question in enumerate(data.questions):
        answer = {"answer": answers.texts[index], "probability": answers.score[index].exp().item()}
        if threshold is not None:
            answer["no_answer"] = answers.nothing[index].exp().item()
            if answers.no_answer[index].double().item() > threshold:
                answer |= {"answer": "", "probability": answer["no_answer"]}
        uncertainties = {name: getattr(answers, name)[index].item() for name in ("entropy", "mutual_information")}
        yield json.dumps({"id": question.id, "question": question.text} | answer | uncertainties, ensure_ascii=False)


def choice_lines(trained: Any, file: Path) -> Iterator[str]:
    """Yield a JSON object for each question of a file in RACE's format, with the probabilities of all its options."""
    data = EncodedChoices(read_race(file, answers=False), trained.tokenizer, length=trained.config.length)
    logits = outputs_of(trained, data, kinds(trained.config.guide)[1], num_samples=trained.config.num_samples)
    probabilities = logits.softmax(-1)
    mean, parts = probabilities.mean(0), decompose_uncertainty(probabilities)
    for index, choice in enumerate(data.choices):
        best = int(mean[index].argmax())
        line = {"id": choice.id, "question": choice.question, "answer": ascii_uppercase[best]}
        numbers = {
            "probability": mean[index, best].item(),
            "probabilities": mean[index, : len(choice.options)].tolist(),
            "entropy": parts.total[index].item(),
            "mutual_information": parts.mutual_information[index].item(),
        }
        yield json.dumps(line | {"option": choice.options[best]} | numbers, ensure_ascii=False)


def read_questions(path: Path) -> list[Question]:
    """Read questions from a file in the format of SQuAD, or from lines with a context, a tab and a question."""
    if path.name.endswith((".json", ".json.gz")):
        return read_squad(path, answers=False)
    rows = read_columns(path, "context", "question")
    return [Question(str(number), "", context, asked, ()) for number, (context, asked) in enumerate(rows, 1)]
