"""Scores of a network that answers questions, with intervals, and how well its uncertainty tells wrong answers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.datasets.text.squad import Question
from experiments.files import write_atomic
from experiments.finetune.evaluation import KINDS, OTHERS, kinds
from experiments.finetune.qa.answers import (
    Answered,
    all_scores,
    best_answers,
    best_spans,
    best_threshold,
    bootstrap_interval,
)
from experiments.finetune.qa.model import QaTuned
from experiments.finetune.qa.windows import Windows
from pyro_attention.posterior.predictive import seeded

__all__ = ["answers_of", "definitions", "evaluate"]

_BATCH = 64
_SCORES = {
    "exact": "fraction of questions whose answer is exactly right (EM of the official evaluation)",
    "f1": "mean F1 of the words of the answers (F1 of the official evaluation)",
}
_HAS_ANSWER = "; questions with an answer alone (HasAns)"
_OWN = {
    "val_score": "mean F1 on the validation part after the last epoch, with the best no-answer threshold, attention at "
    "its mean",
    "val_loss": "mean negative log probability of first and last token of a window on the validation part after the "
    "last epoch, attention at its mean, nats",
    "left_out": "number of training questions left out, as no window holds their whole answer",
    **{
        f"{part}_{name}": f"number of {text} of the {part} part"
        for part in ("train", "val", "test")
        for name, text in (
            ("questions", "questions"), ("without_answer", "questions without an answer"), ("windows", "windows"),
        )
    },
}  # fmt: skip


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric means; ``test_KIND_NAME`` is one of a kind of prediction."""
    scores = _SCORES | {f"has_answer_{name}": f"{text}{_HAS_ANSWER}" for name, text in _SCORES.items()}
    scores["no_answer_accuracy"] = "fraction of questions without an answer that get none (NoAns, EM and F1)"
    ends = {"low": "lower", "high": "upper"}
    scores |= {
        f"{name}_{end}": f"{word} end of the 95 % bootstrap interval, over questions, of: {_SCORES[name]}"
        for name in _SCORES
        for end, word in ends.items()
    }
    scores |= {
        f"auroc_{name}": f"area under the ROC curve of telling answers that are not exactly right by the larger {text}"
        for name, text in (
            ("entropy", "entropy of the mean probabilities of first and last token"),
            ("mutual_information", "mutual information of these tokens and the noise"),
        )
    }
    texts = OTHERS | _OWN
    for kind, (_, how) in KINDS.items():
        texts |= {f"test_{kind}_{name}": f"{text}; test part; {how}" for name, text in scores.items()}
        texts[f"{kind}_threshold"] = (
            f"log probability of no answer, less that of the best answer, above which none is given; that of best F1 "
            f"on the validation part; {how}"
        )
    return {name: texts[name] for name in metrics}


def answers_of(trained: QaTuned, data: Windows, kind: str, *, spans: int = 1) -> Answered:
    """The best answers by one kind of prediction, out of this number of spans of each window."""
    config, (noise, _) = trained.config, KINDS[kind]
    samples = 1 if noise == "none" else config.num_samples
    found = []
    with seeded(config.seed):
        for _, batch in data.batches(trained.device, sentences=_BATCH):
            logits = trained.module.outputs(batch.inputs, batch.allowed, num_samples=samples, noise=noise)
            found.append(best_spans(logits, batch, longest=config.max_answer, count=spans))
    return best_answers(data, found)


def evaluate(trained: QaTuned, data: Mapping[str, Windows], folder: Path) -> dict[str, float]:
    """Scores of the test part; the no-answer threshold is that of the validation part.

    Writes predictions.npz, with answers and numbers of every kind, and answers.json, which the official evaluation
    reads: a text each question, empty for none, with soft attention at its mean, else the mean over posterior samples.
    """
    task, questions = trained.config.task, data["test"].questions
    metrics, arrays = dict[str, float](), dict[str, Any]()
    for kind in kinds(trained.config.guide):
        answered = answers_of(trained, data["test"], kind)
        given = answered.texts
        if task == "v2":
            val = answers_of(trained, data["val"], kind)
            _, f1 = all_scores(val.texts, data["val"].questions, task)
            threshold, _ = best_threshold(val.no_answer.numpy(), f1, data["val"].questions)
            metrics[f"{kind}_threshold"] = threshold
            no_answer = answered.no_answer.double() > threshold
            given = ["" if no else text for no, text in zip(no_answer.tolist(), given, strict=True)]
        exact, f1 = all_scores(given, questions, task)
        found = _scores(exact, f1, questions) | _areas(exact, answered, kind)
        metrics |= {f"test_{kind}_{name}": value for name, value in found.items()}
        columns = {"answers": np.array(given), "exact": exact, "f1": f1} | {
            name: getattr(answered, name).numpy() for name in ("no_answer", "entropy", "mutual_information")
        }
        arrays |= {f"{kind}_{name}": column for name, column in columns.items()}
    ids = [question.id for question in questions]
    arrays["ids"] = np.array(ids)
    write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, **arrays))
    shown = "mean" if trained.config.guide == "soft" else "attention"
    answers = dict(zip(ids, arrays[f"{shown}_answers"].tolist(), strict=True))
    content = json.dumps(answers, ensure_ascii=False, indent=0).encode()
    write_atomic(folder / "answers.json", lambda file: file.write(content))
    return metrics


def _scores(exact: NDArray[Any], f1: NDArray[Any], questions: list[Question]) -> dict[str, float]:
    found = dict[str, float]()
    answerable = np.array([bool(question.answers) for question in questions])
    for name, values in (("exact", exact), ("f1", f1)):
        low, high = bootstrap_interval(values)
        found |= {name: values.mean(), f"{name}_low": low, f"{name}_high": high}
        if not answerable.all():
            found[f"has_answer_{name}"] = values[answerable].mean() if answerable.any() else math.nan
    if not answerable.all():
        found["no_answer_accuracy"] = exact[~answerable].mean()
    return {name: float(value) for name, value in found.items()}


def _areas(exact: NDArray[Any], answered: Answered, kind: str) -> dict[str, float]:
    """How well uncertainty tells wrong answers; nothing where all are right, or all are wrong."""
    if not 0 < exact.mean() < 1:
        return {}
    names = ("entropy",) if kind == "mean" else ("entropy", "mutual_information")
    return {f"auroc_{name}": float(roc_auc_score(exact == 0, getattr(answered, name).numpy())) for name in names}
