"""Answers of a fine-tuned model to questions of a file of one's own, with their uncertainty."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.datasets.text.squad import Question, read_squad
from experiments.files import UserError, user_errors, write_atomic
from experiments.finetune.config import PredictConfig
from experiments.finetune.evaluation import kinds
from experiments.finetune.own_files import output_file, read_columns
from experiments.finetune.qa.config import QaConfig
from experiments.finetune.qa.evaluation import answers_of
from experiments.finetune.qa.model import QaTuned, build
from experiments.finetune.qa.spans import Answered
from experiments.finetune.qa.windows import Windows
from experiments.finetune.training import restored
from experiments.harness.results import read_metrics
from experiments.report.columns import Row
from experiments.report.tables import as_table

__all__ = ["answer_file", "load_trained", "read_questions"]

_EXPECTED = "a context and a question with a tab between them, or a file .json in the format of SQuAD"
_BEST = 3  # answers of a question
_SPANS = 9  # of each window that these are chosen from, as several may be the same text
_SHOWN, _WIDTH = 20, 50  # questions on the terminal, and letters of each text


def load_trained(folder: Path, **changes: Any) -> QaTuned:
    """The model of a finished run, with changes of its configuration.

    Raises:
        UserError: The folder holds no such run, or its pretrained model is not there any more.
    """
    return restored(folder, QaConfig, build, script="experiments.finetune qa", **changes)


def answer_file(config: PredictConfig) -> Path:
    """Write one line of JSON for each question of the file, and print the first ones and where all are.

    Raises:
        UserError: No such run, or a file that cannot be read or would be lost.
    """
    out = output_file(config, ".jsonl")
    trained = load_trained(config.run, device=config.device, num_samples=config.num_samples)
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
    rows = read_columns(path, ("context", "question"), _EXPECTED)
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
