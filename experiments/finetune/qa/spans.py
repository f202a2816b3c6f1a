"""From the logits of windows to the answers of questions, with the uncertainty of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.finetune.qa.windows import WindowBatch, Windows

__all__ = ["Answered", "BestSpans", "best_answers", "best_spans"]


class BestSpans(NamedTuple):
    """The best span of every window of a batch, ``[B]`` each.

    Attributes:
        places: Places of the windows.
        score: Log of the probability of its first token times that of its last one.
        first: First token.
        last: Last token.
        nothing: The score of no answer.
        entropy: Entropy of the first and the last token, sum of both, nats.
        mutual_information: Of these two tokens and the noise, sum of both, nats.
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
        texts: The answers.
        no_answer: Score of no answer, the smallest one of all windows, less that of the answer ``[Q]``.
        entropy: Of the window that holds the answer ``[Q]``.
        mutual_information: The same.
    """

    texts: list[str]
    no_answer: Tensor
    entropy: Tensor
    mutual_information: Tensor


def best_spans(logits: Tensor, batch: WindowBatch, *, longest: int) -> BestSpans:
    """The best of all spans of the context in every window, by the mean of probabilities over samples.

    Args:
        logits: Of first and last token ``[S, B, 2, T]``.
        batch: The windows.
        longest: Tokens of a span at most.
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
    score, best = scores.flatten(1).max(-1)
    nothing = log_mean[rows, :, batch.nothing].sum(-1)
    information = (entropy - expected).clamp_min(0)
    found = batch.places, score, best // width, best % width, nothing, entropy, information
    return BestSpans(*(one.cpu() for one in found))


def best_answers(data: Windows, found: Iterable[BestSpans]) -> Answered:
    """The answer to every question, the best one of its windows.

    Args:
        data: The windows.
        found: The best spans of all windows.
    """
    spans = BestSpans(*(torch.cat(parts) for parts in zip(*found, strict=True)))
    spans = BestSpans(*(part[spans.places.argsort()] for part in spans))
    counts = torch.bincount(torch.tensor([window.question for window in data.windows]))
    windows_of = torch.arange(len(data)).split(counts.tolist())  # the windows of a question follow each other
    chosen = torch.stack([windows[spans.score[windows].argmax()] for windows in windows_of])
    nothing = torch.stack([spans.nothing[windows].min() for windows in windows_of])
    texts = [_text(data, window, spans) for window in chosen.tolist()]
    of_chosen = spans.entropy[chosen], spans.mutual_information[chosen]
    return Answered(texts, nothing - spans.score[chosen], *of_chosen)


def _text(data: Windows, place: int, spans: BestSpans) -> str:
    window = data.windows[place]
    begin, end = window.spans[spans.first[place], 0], window.spans[spans.last[place], 1]
    return data.questions[window.question].context[int(begin) : int(end)]
