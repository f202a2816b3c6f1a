"""One word at a time: the greedy path through a model, and samples from it.

The decoder is fed with the expected context, also of a model that was trained with ``input_feed="sampled"``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.decoding.hypotheses import Hypothesis, align, check_request, evaluation, largest
from models.decoding.inference import Inference
from models.decoding.next_word import next_word_log_probs
from pyro_attention.posterior.predictive import seeded

__all__ = ["greedy", "sample"]

_DEFAULT = Inference()


def greedy(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    *,
    begin: int,
    end: int,
    max_length: int = 100,
    inference: Inference = _DEFAULT,
    alignments: bool = True,
    seed: int | None = None,
) -> list[Hypothesis]:
    """The most probable word at every step; equals :func:`beam_search` with one beam and no length penalty.

    Args:
        model: The model.
        source: The source that the model takes: ids ``[B, N]``, or features ``[B, N, F]``.
        source_mask: True at what is no padding, which comes first, ``[B, N]``.
        begin: Id that stands before the first word.
        end: Id that ends a sentence.
        max_length: Largest number of words, the end token among them.
        inference: How the attention is integrated out of each word.
        alignments: Also compute the alignments, by one more pass over the result.
        seed: Seed of the posterior draws, where there are any.

    Returns:
        One hypothesis for each sentence, whose score is its log probability.

    Raises:
        ValueError: As :func:`beam_search`.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source = torch.randint(10, (2, 5))
        >>> len(greedy(model, source, source >= 0, begin=1, end=2, max_length=3))
        2
    """
    request = {"begin": begin, "end": end, "max_length": max_length}

    def choose(log_probs: Tensor) -> Tensor:
        return largest(log_probs, 1)[1].squeeze(1)

    return _walk(model, source, source_mask, choose, alignments=alignments, seed=seed, inference=inference, **request)


def sample(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    *,
    begin: int,
    end: int,
    temperature: float = 1.0,
    max_length: int = 100,
    inference: Inference = _DEFAULT,
    alignments: bool = True,
    seed: int | None = None,
) -> list[Hypothesis]:
    r"""One random sentence for each source, word by word from :math:`p(y \mid x, y_{<j})^{1/T}`, normalised.

    For more of the same sentence repeat its row. The draws depend on the batch, not on its padding (unless ``samples``
    draws weights).

    Args:
        model: The model.
        source: The source that the model takes: ids ``[B, N]``, or features ``[B, N, F]``.
        source_mask: True at what is no padding, which comes first, ``[B, N]``.
        begin: Id that stands before the first word.
        end: Id that ends a sentence.
        temperature: T > 0; below 1 probable words become more so.
        max_length: Largest number of words, the end token among them.
        inference: How the attention is integrated out of each word.
        alignments: Also compute the alignments, by one more pass over the result.
        seed: Seed of this call alone; torch's global generator goes on as if nothing had happened.

    Returns:
        One hypothesis for each sentence; log probability and score are the model's own, at T = 1.

    Raises:
        ValueError: As :func:`beam_search`; a temperature that is not positive and finite.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source = torch.randint(10, (2, 5))
        >>> options = {"begin": 1, "end": 2, "max_length": 3, "seed": 0}
        >>> sample(model, source, source >= 0, **options) == sample(model, source, source >= 0, **options)
        True
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}, expected a positive finite number")
    request = {"begin": begin, "end": end, "max_length": max_length}

    def choose(log_probs: Tensor) -> Tensor:
        largest(log_probs, 1)  # names NaN
        return (log_probs / temperature).softmax(1).multinomial(1).squeeze(1)

    return _walk(model, source, source_mask, choose, alignments=alignments, seed=seed, inference=inference, **request)


@torch.no_grad()
def _walk(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    choose: Callable[[Tensor], Tensor],
    *,
    begin: int,
    end: int,
    max_length: int,
    alignments: bool,
    seed: int | None,
    inference: Inference,
) -> list[Hypothesis]:
    """Go on by the word that is chosen from log probabilities ``[B, V]`` until every sentence has ended."""
    check_request(model, source, source_mask, inference, begin=begin, end=end, max_length=max_length)
    with evaluation(model), seeded(seed):
        start = state = model.start(model.encode(source, source_mask), source_mask)
        word = torch.full((len(source),), begin, device=source.device)
        tokens: list[Tensor] = []
        log_probs: list[Tensor] = []
        ended = torch.zeros_like(source_mask[:, 0])
        while len(tokens) < max_length and not ended.all():
            step = model.step(state, model.embed(word), k_max=inference.k_max)
            state, words = step.state, next_word_log_probs(model, step, inference)
            word = choose(words)
            tokens.append(word)
            log_probs.append(words.gather(1, word[:, None]).squeeze(1))
            ended = ended | (word == end)
        found = []
        for ids, values in zip(torch.stack(tokens, 1).tolist(), torch.stack(log_probs, 1).tolist(), strict=True):
            length = ids.index(end) + 1 if end in ids else len(ids)
            total = sum(values[:length])
            found.append(Hypothesis(tuple(ids[:length]), total, total, end in ids))
        if not alignments:
            return found
        return [row[0] for row in align(model, start, [[one] for one in found], begin=begin, inference=inference)]
