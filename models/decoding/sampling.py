"""Sentences drawn word by word.

The decoder is fed with the expected context, also of a model that was trained with ``input_feed="sampled"``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.decoding.hypotheses import Hypothesis, align, check_request, evaluation, largest
from models.decoding.inference import DEFAULT, Inference
from models.decoding.next_word import next_word_log_probs
from pyro_attention.posterior.predictive import seeded

__all__ = ["sample"]


@torch.no_grad()
def sample(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    *,
    begin: int,
    end: int,
    temperature: float = 1.0,
    max_length: int = 100,
    inference: Inference = DEFAULT,
    alignments: bool = True,
    seed: int | None = None,
) -> list[Hypothesis]:
    r"""One random sentence for each source, word by word from :math:`p(y \mid x, y_{<j})^{1/T}`, normalised.

    For more of the same sentence repeat its row. The draws depend on the batch, not on its padding (unless ``samples``
    draws weights). Other arguments are those of :func:`beam_search`, which takes the most probable word at every step
    with ``beam=1, length_penalty=0``. Log probability and score of a hypothesis are the model's own, at T = 1.

    Args:
        temperature: T > 0; below 1 probable words become more so.

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
    ids = {"begin": begin, "end": end}
    check_request(model, source, source_mask, inference, ids=ids, counts={"max_length": max_length})
    with evaluation(model), seeded(seed):
        start = state = model.start(model.encode(source, source_mask), source_mask)
        word = torch.full((len(source),), begin, device=source.device)
        drawn: list[tuple[Tensor, Tensor]] = []
        ended = torch.zeros_like(source_mask[:, 0])
        while len(drawn) < max_length and not ended.all():
            step = model.read(state, word, k_max=inference.k_max)
            state, words = step.state, next_word_log_probs(model, step, inference)
            largest(words, 1)  # names NaN
            word = (words / temperature).softmax(1).multinomial(1).squeeze(1)
            drawn.append((word, words.gather(1, word[:, None]).squeeze(1)))
            ended = ended | (word == end)
        found = []
        rows = (torch.stack(column, 1).tolist() for column in zip(*drawn, strict=True))
        for tokens, log_probs in zip(*rows, strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            total = sum(log_probs[:length])
            found.append(Hypothesis(tuple(tokens[:length]), total, total, end in tokens))
        if not alignments:
            return found
        return [row[0] for row in align(model, start, [[one] for one in found], begin=begin, inference=inference)]
