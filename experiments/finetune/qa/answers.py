"""From the logits of windows to the answers of questions, and their scores by SQuAD's official evaluation."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.datasets.text.squad import Question, SquadName
from experiments.finetune.qa.windows import WindowBatch, Windows

__all__ = [
    "Answered", "BestSpans", "all_scores", "best_answers", "best_spans", "best_threshold", "bootstrap_interval",
    "normalized", "question_scores",
]  # fmt: skip

Array = NDArray[np.float64]

_RESAMPLES = 2000
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class BestSpans(NamedTuple):
    """The K best spans of every window of a batch, best first.

    Attributes:
        places: Places of the windows ``[B]``.
        score: Log of the probability of the first token of a span times that of its last one ``[B, K]``; minus infinity
            where a window has fewer spans.
        first: First token ``[B, K]``.
        last: Last token ``[B, K]``.
        nothing: The score of no answer ``[B]``.
        entropy: Entropy of the first and the last token, sum of both, nats ``[B]``.
        mutual_information: Of these two tokens and the noise, sum of both, nats ``[B]``.
    """

    places: Tensor
    score: Tensor
    first: Tensor
    last: Tensor
    nothing: Tensor
    entropy: Tensor
    mutual_information: Tensor


class Answered(NamedTuple):
    """The best answer to each of Q questions, whether there is one or not.

    Attributes:
        ranked: Different answers, each with the log of its probability in the window where that is largest, best first.
        nothing: Log of the probability of no answer, the smallest one of all windows ``[Q]``.
        no_answer: The same less the log probability of the best answer ``[Q]``.
        entropy: Of the window that holds the best answer ``[Q]``.
        mutual_information: The same.
    """

    ranked: list[list[tuple[str, float]]]
    nothing: Tensor
    no_answer: Tensor
    entropy: Tensor
    mutual_information: Tensor

    @property
    def texts(self) -> list[str]:
        """The best answer to each question."""
        return [ranked[0][0] for ranked in self.ranked]


def best_spans(logits: Tensor, batch: WindowBatch, *, longest: int, count: int = 1) -> BestSpans:
    """The best of all spans of the context in every window, by the mean of probabilities over samples.

    Args:
        logits: Of first and last token ``[S, B, 2, T]``.
        batch: The windows.
        longest: Tokens of a span at most.
        count: Number of spans, K.
    """
    samples = logits.softmax(-1)
    mean = samples.mean(0)
    entropy = torch.special.entr(mean).sum((-2, -1))
    expected = torch.special.entr(samples).sum((-2, -1)).mean(0)
    log_mean = mean.clamp_min(torch.finfo(mean.dtype).tiny).log()
    # the token of no answer is the one that is allowed and no token of the context
    rows, width = torch.arange(len(mean), device=mean.device), mean.size(-1)
    context = batch.allowed.clone()
    context[rows, batch.nothing] = False
    place = torch.arange(width, device=mean.device)
    length = place[None, :] - place[:, None] + 1
    possible = context[:, :, None] & context[:, None, :] & (length > 0) & (length <= longest)
    scores = (log_mean[:, 0, :, None] + log_mean[:, 1, None, :]).masked_fill(~possible, -torch.inf)
    score, best = scores.flatten(1).topk(count)
    nothing = log_mean[rows, :, batch.nothing].sum(-1)
    information = (entropy - expected).clamp_min(0)
    found = batch.places, score, best // width, best % width, nothing, entropy, information
    return BestSpans(*(one.cpu() for one in found))


def best_answers(data: Windows, found: Iterable[BestSpans]) -> Answered:
    """The best answers to every question, those of all its windows.

    Args:
        data: The windows.
        found: The best spans of all windows.
    """
    spans = BestSpans(*(torch.cat(parts) for parts in zip(*found, strict=True)))
    spans = BestSpans(*(part[spans.places.argsort()] for part in spans))
    counts = torch.bincount(torch.tensor([window.question for window in data.windows]))
    windows_of = torch.arange(len(data)).split(counts.tolist())  # the windows of a question follow each other
    chosen = torch.stack([windows[spans.score[windows, 0].argmax()] for windows in windows_of])
    nothing = torch.stack([spans.nothing[windows].min() for windows in windows_of])
    ranked = [_ranked(data, windows, spans) for windows in windows_of]
    of_chosen = spans.entropy[chosen], spans.mutual_information[chosen]
    return Answered(ranked, nothing, nothing - spans.score[chosen, 0], *of_chosen)


def _ranked(data: Windows, windows: Tensor, spans: BestSpans) -> list[tuple[str, float]]:
    """The different texts of the best spans of a question's windows, each with its best score, best first."""
    texts = dict[str, float]()
    scores, order = spans.score[windows].flatten().sort(descending=True, stable=True)
    for score, place in zip(scores.tolist(), order.tolist(), strict=True):
        if math.isfinite(score):
            window, rank = divmod(place, spans.score.size(1))
            texts.setdefault(_text(data, int(windows[window]), rank, spans), score)
    return list(texts.items())


def _text(data: Windows, place: int, rank: int, spans: BestSpans) -> str:
    window = data.windows[place]
    begin, end = window.spans[spans.first[place, rank], 0], window.spans[spans.last[place, rank], 1]
    return data.questions[window.question].context[int(begin) : int(end)]


def normalized(answer: str) -> str:
    """An answer as the evaluation compares it: small letters, without punctuation and articles, and single blanks.

    Example:
        >>> normalized("The  U.S. Army's")
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
    means = [values[generator.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
