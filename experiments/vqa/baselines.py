"""What is right without a look at any photograph: the most frequent answer, over all questions or by their form.

A network that sees the question alone is any model trained with ``--blind``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from experiments.datasets.questions.data import Questions
from experiments.vqa.accuracy import consensus, vqa_accuracy

__all__ = ["baselines", "question_form"]


def question_form(question: Sequence[str]) -> str:
    """Return the first two words of a question, such as "how many"."""
    return " ".join(question[:2])


def baselines(data: Mapping[str, Questions]) -> dict[str, float]:
    """Return accuracies on the questions "test" of answers that are frequent in "train".

    Returns:
        "majority": the accuracy of the most frequent answer; "form": that of the most frequent one to questions that
        begin with the same two words, or of all where none does. Of answers that are as frequent the first in the
        alphabet counts.
    """
    whole: Counter[str] = Counter()
    by_form: defaultdict[str, Counter[str]] = defaultdict(Counter)
    train, test = data["train"], data["test"]
    for question, votes in zip(train.questions, train.answers, strict=True):
        whole.update(consensus(votes))
        by_form[question_form(question)].update(consensus(votes))
    majority = _first(whole)
    answers = {form: _first(counts) for form, counts in by_form.items()}
    found = {"majority": 0.0, "form": 0.0}
    for question, votes in zip(test.questions, test.answers, strict=True):
        found["majority"] += vqa_accuracy(majority, votes) / len(test)
        found["form"] += vqa_accuracy(answers.get(question_form(question), majority), votes) / len(test)
    return found


def _first(counts: Counter[str]) -> str:
    return min(counts, key=lambda answer: (-counts[answer], answer))
