"""SQuAD 2.0: official scores where some questions have no answer, and the threshold of giving none."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.data.text.squad import Question

Array = NDArray[np.float64]


def normalized(answer: str) -> str:
    """Return an answer as the evaluation compares it: small letters, single blanks, no punctuation, no articles.

    Example:
        >>> normalized("The  U.S. Army's")
        'us armys'
    """
    plain = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def question_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1 of words by the evaluation of SQuAD 2.0, the largest values over all answers.

    Answers of articles and punctuation alone do not count. For a question without an answer both are 1 if the
    prediction is empty, else 0.

    Example:
        >>> question_scores("the Norman conquest", ["Norman", "Norman conquest of 1066"])
        (0.0, 0.666...)
        >>> question_scores("", []), question_scores("Norman", [])
        ((1.0, 1.0), (0.0, 0.0))

    Source: Rajpurkar et al., Know What You Don't Know: Unanswerable Questions for SQuAD, 2018.
    """
    truths = [truth for truth in map(normalized, answers) if truth] or [""]
    normalized_prediction = normalized(predicted)
    return max(float(normalized_prediction == truth) for truth in truths), max(
        _f1(normalized_prediction.split(), truth.split()) for truth in truths
    )


def _f1(predicted: list[str], truth: list[str]) -> float:
    if not (predicted and truth):
        return float(predicted == truth)
    common = (Counter(predicted) & Counter(truth)).total()
    return 2 * common / (len(predicted) + len(truth)) if common else 0.0


def best_threshold(no_answer: Array, scores: Array, questions: Sequence[Question]) -> tuple[float, float]:
    """Return the threshold above which no answer is given, with the best mean score, and that score.

    Args:
        no_answer: Log probability of no answer, less that of the best answer, ``[questions]``.
        scores: F1 of the best answers, ``[questions]``.
        questions: The questions. Giving no answer is right where a question has none.
    """
    answerable = np.array([bool(question.answers) for question in questions])
    order = np.argsort(no_answer, kind="stable")
    # from no question answered to all: an answer adds its score, or loses the point for rightly giving none
    gains = np.where(answerable, scores, -1.0)[order]
    totals = np.concatenate([[0.0], gains.cumsum()]) + (~answerable).sum()
    values = np.concatenate([[no_answer.min() - 1], no_answer[order]])
    # questions with equal log probabilities are answered together
    possible = np.append(values[1:] > values[:-1], True)
    best = int(np.where(possible, totals, -np.inf).argmax())
    return float(values[best]), float(totals[best] / len(scores))


def mean_scores(exact: Array, f1: Array, questions: Sequence[Question]) -> dict[str, float]:
    """Return mean scores over all questions, over those with an answer (HasAns) and over those without (NoAns)."""
    answerable = np.array([bool(question.answers) for question in questions])
    scores = {"exact": exact, "f1": f1}
    if answerable.any() and not answerable.all():
        scores |= {f"has_answer_{name}": values[answerable] for name, values in scores.items()}
        scores["no_answer_accuracy"] = exact[~answerable]
    return {name: float(values.mean()) for name, values in scores.items()}
