"""Exact match and F1 by the rules of SQuAD's official evaluation, the no-answer threshold, bootstrap intervals."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.datasets.text.squad import Question, SquadName

__all__ = ["all_scores", "best_threshold", "bootstrap_interval", "normalised", "question_scores"]

Array = NDArray[np.float64]

_RESAMPLES = 2000
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """An answer as the evaluation compares it: small letters, without punctuation and articles, and single blanks.

    Example:
        >>> normalised("The  U.S. Army's")
        'us armys'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


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
    truths = [normalised(answer) for answer in answers]
    if rules == "v2":
        truths = [truth for truth in truths if truth] or [""]
    said = normalised(predicted)
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
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
