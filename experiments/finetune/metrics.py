"""The official metrics of GLUE's tasks, also of resampled test parts, and those of SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from experiments.datasets.text.glue import GlueName
from experiments.datasets.text.squad import Question, SquadName

Array = NDArray[np.float64]

METRICS: Mapping[GlueName, tuple[str, ...]] = {
    "rte": ("accuracy",),
    "mrpc": ("f1", "accuracy"),
    "cola": ("matthews", "accuracy"),
    "sst2": ("accuracy",),
    "stsb": ("pearson", "spearman"),
}
"""Metrics of each task; tables compare the first one, and settings are chosen by it."""
TEXTS = {
    "accuracy": "fraction of correct classes",
    "f1": "F1 of the class of paraphrases",
    "matthews": "Matthews correlation of classes",
    "pearson": "Pearson correlation of grades",
    "spearman": "Spearman correlation of grades",
}
"""What they mean."""


def glue_scores(task: GlueName, predicted: Array, labels: Array) -> dict[str, float]:
    """The official metrics of predicted classes, or grades, ``[items]``.

    A correlation or F1 that does not exist, as all predictions are alike, counts as 0.

    Example:
        >>> glue_scores("cola", np.array([1.0, 1, 0, 1]), np.array([1.0, 1, 0, 0]))
        {'matthews': 0.577..., 'accuracy': 0.75}
    """
    once = np.ones((1, len(labels)))
    return {name: float(weighted_score(name, predicted, labels, once)[0]) for name in METRICS[task]}


def weighted_score(name: str, predicted: Array, labels: Array, counts: Array) -> Array:
    """A metric of parts in which items are there several times, or not at all, ``[R]``.

    Args:
        name: The metric.
        predicted: Classes or grades ``[items]``.
        labels: The true ones ``[items]``.
        counts: How often each item is there, ``[R, items]``; ranks are those of all items, each there once.
    """
    predicted, labels = np.asarray(predicted, float), np.asarray(labels, float)
    if name == "accuracy":
        return np.asarray(counts @ (predicted == labels) / counts.sum(1))
    if name == "f1":
        return np.asarray(2 * (counts @ (predicted * labels)) / np.maximum(counts @ (predicted + labels), 1))
    if name == "spearman":
        return _correlation(rankdata(predicted), rankdata(labels), counts)
    return _correlation(predicted, labels, counts)


def _correlation(predicted: Array, labels: Array, counts: Array) -> Array:
    """Pearson's correlation; of two classes it is that of Matthews."""
    shares = counts / counts.sum(1, keepdims=True)
    # the same numbers for all parts, near 0: no digits are lost
    x, y = predicted - predicted.mean(), labels - labels.mean()
    mean_x, mean_y = shares @ x, shares @ y
    spread = np.maximum(shares @ x**2 - mean_x**2, 0) * np.maximum(shares @ y**2 - mean_y**2, 0)
    exists = spread > 1e-24
    return np.where(exists, (shares @ (x * y) - mean_x * mean_y) / np.sqrt(np.where(exists, spread, 1.0)), 0.0)


# SQuAD


def normalized(answer: str) -> str:
    """An answer as the evaluation compares it: small letters, without punctuation and articles, and single blanks.

    Example:
        >>> normalized("The  U.S. Army's")
        'us armys'
    """
    plain = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def question_scores(predicted: str, answers: Sequence[str], rules: SquadName) -> tuple[float, float]:
    """Exact match and F1 of words, the largest ones over all answers.

    Args:
        predicted: The answer; empty for none.
        answers: What people answered; none where there is no answer.
        rules: v2, those of SQuAD 2.0: answers of articles and punctuation alone do not count, no answer is right where
            there is none, and then F1 is 1 as the exact match is; v1, those of 1.1: F1 is 0 without common words.

    Example:
        >>> question_scores("the Norman conquest", ["Norman", "Norman conquest of 1066"], "v1")
        (0.0, 0.666...)
        >>> question_scores("", [], "v2")
        (1.0, 1.0)
    """
    truths = [normalized(answer) for answer in answers]
    if rules == "v2":
        truths = [truth for truth in truths if truth] or [""]
    said = normalized(predicted)
    exact = max(float(said == truth) for truth in truths)
    return exact, max(_f1(said.split(), truth.split(), rules) for truth in truths)


def _f1(said: list[str], truth: list[str], rules: SquadName) -> float:
    if rules == "v2" and not (said and truth):
        return float(said == truth)
    common = (Counter(said) & Counter(truth)).total()
    return 2 * common / (len(said) + len(truth)) if common else 0.0


def all_scores(predicted: Sequence[str], questions: Sequence[Question], rules: SquadName) -> tuple[Array, Array]:
    """Exact match and F1 of every question ``[questions]``; see :func:`question_scores`."""
    found = [
        question_scores(text, [answer.text for answer in question.answers], rules)
        for text, question in zip(predicted, questions, strict=True)
    ]
    exact, f1 = np.array(found).T
    return exact, f1


def best_threshold(no_answer: Array, scores: Array, questions: Sequence[Question]) -> tuple[float, float]:
    """The threshold above which no answer is given, with the best mean score, and that score.

    Args:
        no_answer: Score of no answer, less that of the best answer ``[questions]``.
        scores: F1, or exact match, of the best answer ``[questions]``.
        questions: The questions.
    """
    answerable = np.array([bool(question.answers) for question in questions])
    order = np.argsort(no_answer, kind="stable")
    # from none answered to all: each adds its score, or loses that of rightly giving no answer
    gains = np.where(answerable, scores, -1.0)[order]
    totals = np.concatenate([[0.0], gains.cumsum()]) + (~answerable).sum()
    values = np.concatenate([[no_answer.min() - 1], no_answer[order]])
    # of equal ones all are answered
    possible = np.append(values[1:] > values[:-1], True)
    best = int(np.where(possible, totals, -np.inf).argmax())
    return float(values[best]), float(totals[best] / len(scores))


def bootstrap_interval(values: Array) -> tuple[float, float]:
    """The 95 % interval of a mean, by resampling what it is taken over, always the same way."""
    generator = np.random.default_rng(0)
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(2000)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
