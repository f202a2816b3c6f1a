r"""Beam search.

Hypotheses are ranked by :math:`\log p(y \mid x) / ((5 + |y|) / 6)^\alpha`, where ``|y|`` counts the end token, not the
begin token. Hypotheses that end are finished if they are among the best ``beam`` continuations, by log probability, of
all live ones; the best ``beam`` others go on. The search of a sentence stops when no live hypothesis can beat the worst
of the ``keep`` best finished ones any more: log probabilities only fall, so one of log probability l never scores above
``l / ((5 + max_length) / 6) ** alpha``. That a finished hypothesis has the highest log probability is not enough, since
a longer one may outscore it. Ties go to the shorter hypothesis, then to the better prefix, then to the lower id.

The decoder is fed with the expected context, also of a model that was trained with ``input_feed="sampled"``. Padding
of the source never changes a result, and the batch none beyond rounding (with posterior draws: up to the noise drawn).

Source: Wu et al. (2016), Google's Neural Machine Translation System, section 7; Deng et al. (2018), Latent Alignment
and Variational Attention, section 5; Paulus et al. (2018), A Deep Reinforced Model for Abstractive Summarization,
section 2.5, for ``no_repeat``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from models.decoder import AttentionDecoder
from models.decoder_state import DecoderState
from models.decoding.hypotheses import Hypothesis, align, check_request, evaluation, largest, length_divisor, repeats
from models.decoding.inference import DEFAULT, Inference
from models.decoding.next_word import next_word_log_probs
from pyro_attention.posterior.predictive import seeded

__all__ = ["SearchState", "beam_search", "search_words"]


class SearchState(Protocol):
    """What a decoder remembers of the words before, a row for each hypothesis, as :class:`DecoderState` does."""

    @property
    def memory(self) -> Tensor:
        """What is attended to, ``[B, N, memory]``."""

    def reorder(self, rows: Tensor) -> Self:
        """Row ``rows[i]`` in the place of row i, which must belong to the same source."""

    def select(self, rows: Tensor) -> Self:
        """These rows, source and all."""


Advance = Callable[[Any, Tensor], tuple[Tensor, Any]]


@torch.no_grad()
def beam_search(
    model: AttentionDecoder,
    source: Tensor,
    source_mask: Tensor,
    *,
    begin: int,
    end: int,
    beam: int = 10,
    max_length: int = 100,
    length_penalty: float = 1.0,
    keep: int = 1,
    no_repeat: int | None = None,
    inference: Inference = DEFAULT,
    alignments: bool = True,
    seed: int | None = None,
) -> list[list[Hypothesis]]:
    """The best sentences that a beam finds; the model is put in evaluation mode meanwhile.

    Args:
        model: The model.
        source: The source that the model takes: ids ``[B, N]``, or features ``[B, N, F]``.
        source_mask: True at what is no padding, which comes first, ``[B, N]``.
        begin: Id that stands before the first word.
        end: Id that ends a sentence.
        beam: Live hypotheses of a sentence.
        max_length: Largest number of words, the end token among them.
        length_penalty: alpha >= 0; 0 ranks by log probability.
        keep: Hypotheses to return, at most ``beam``.
        no_repeat: No so many tokens in a row come twice in a hypothesis; 3 is usual where networks repeat themselves.
        inference: How the attention is integrated out of each word.
        alignments: Also compute the alignments, by one more pass over the result.
        seed: Seed of the posterior draws; the global generator goes on as if nothing had happened.

    Returns:
        For each sentence up to ``keep`` hypotheses, best first. Only when fewer finish do the best ones that were cut
        at ``max_length`` follow, as ``finished=False``.

    Raises:
        ValueError: Wrong shapes, a sentence without words, ids or options out of range, NaN log probabilities, or
            options that do not fit the model.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source = torch.randint(10, (2, 5))
        >>> found = beam_search(model, source, source >= 0, begin=1, end=2, beam=3, keep=2, max_length=6)
        >>> [len(hypotheses) for hypotheses in found], found[0][0].score >= found[0][1].score
        ([2, 2], True)
    """
    ids, counts = {"begin": begin, "end": end}, {"max_length": max_length, "beam": beam, "keep": keep}
    check_request(model, source, source_mask, inference, ids=ids, counts=counts)

    def advance(state: DecoderState, words: Tensor) -> tuple[Tensor, DecoderState]:
        step = model.read(state, words, k_max=inference.k_max)
        return next_word_log_probs(model, step, inference), step.state

    with evaluation(model), seeded(seed):
        start = model.start(model.encode(source, source_mask), source_mask)
        found = search_words(
            start, advance, begin=begin, end=end, beam=beam, max_length=max_length, length_penalty=length_penalty,
            keep=keep, no_repeat=no_repeat,
        )  # fmt: skip
        return align(model, start, found, begin=begin, inference=inference) if alignments else found


@torch.no_grad()
def search_words(
    start: SearchState,
    advance: Advance,
    *,
    begin: int,
    end: int,
    beam: int,
    max_length: int,
    length_penalty: float = 1.0,
    keep: int = 1,
    no_repeat: int | None = None,
) -> list[list[Hypothesis]]:
    """The search of :func:`beam_search`, whose options these are, for any decoder.

    Args:
        start: The decoder's state before the first word, a row for each source.
        advance: Of a state and the last words ``[R]``, ids, the log probabilities ``[R, V]`` of the next words and the
            state after the last ones.

    Returns:
        As :func:`beam_search`, without alignments.

    Raises:
        ValueError: Options out of range, or NaN log probabilities.
    """
    search = _Search(end, beam, max_length, length_penalty, keep, no_repeat, [[] for _ in start.memory])
    beams: _Beams | None = _Beams.begin(start, begin, beam)
    while beams is not None:
        words, state = advance(beams.state, beams.tokens[..., -1].flatten())
        beams = search.advance(beams, words, state)
    return search.found


@dataclass(frozen=True)
class _Beams:
    """Live hypotheses of the R sentences that are still searched."""

    state: SearchState  # a row for each hypothesis, R * beam
    sentences: Tensor  # places in the batch, [R]
    log_probs: Tensor  # in falling order, [R, beam]; -inf at empty places
    tokens: Tensor  # from the begin token on, [R, beam, L]

    @classmethod
    def begin(cls, start: SearchState, begin: int, beam: int) -> _Beams:
        """One hypothesis without words for each sentence; the other places are empty."""
        size, memory = len(start.memory), start.memory
        sentences = torch.arange(size, device=memory.device)
        log_probs = torch.full((size, beam), -math.inf, device=memory.device)
        log_probs = log_probs.to(torch.promote_types(memory.dtype, torch.float32))
        log_probs[:, 0] = 0
        tokens = torch.full((size, beam, 1), begin, device=memory.device)
        return cls(start.select(sentences.repeat_interleave(beam)), sentences, log_probs, tokens)


@dataclass(frozen=True)
class _Search:
    """What a search wants, and what it has found: ``found`` holds the best finished hypotheses of each sentence."""

    end: int
    beam: int
    max_length: int
    length_penalty: float
    keep: int
    no_repeat: int | None
    found: list[list[Hypothesis]]

    def __post_init__(self) -> None:
        if self.keep > self.beam:
            raise ValueError(f"keep is {self.keep}, expected at most the {self.beam} hypotheses of the beam")
        if not 0 <= self.length_penalty < math.inf:
            raise ValueError(f"length_penalty is {self.length_penalty}, expected a number of at least 0")
        if self.no_repeat is not None and self.no_repeat < 1:
            raise ValueError(f"no_repeat is {self.no_repeat}, expected a number of tokens of at least 1, or None")

    def advance(self, beams: _Beams, words: Tensor, state: SearchState) -> _Beams | None:
        """Continue the hypotheses by the best of words of log probabilities ``[R * beam, V]``; keep those that end.

        None where no other can win any more; the state is the decoder's after the step to these words.
        """
        words = words.view(*beams.log_probs.shape, -1)
        if self.no_repeat is not None:
            words = words.masked_fill(repeats(beams.tokens, self.no_repeat, words.size(-1)), -math.inf)
        total = (beams.log_probs.unsqueeze(-1) + words).flatten(1)
        log_probs, index = largest(total, min(2 * self.beam, total.size(1)))  # at most `beam` of these end
        origin, word = index // words.size(-1), index % words.size(-1)
        before = beams.tokens.gather(1, origin.unsqueeze(-1).expand(-1, -1, beams.tokens.size(-1)))
        tokens, ends = torch.cat([before, word.unsqueeze(-1)], -1), word == self.end
        length = tokens.size(-1) - 1
        self._finish(beams.sentences, tokens, log_probs, ends)
        live = ends.to(torch.uint8).sort(dim=1, stable=True).indices[:, : self.beam]
        log_probs = log_probs.masked_fill(ends, -math.inf).gather(1, live)
        tokens = tokens.gather(1, live.unsqueeze(-1).expand(-1, -1, length + 1))
        rows = self._undone(beams.sentences, log_probs)
        if not len(rows) or length == self.max_length:
            self._cut(beams.sentences, tokens, log_probs)
            return None
        size = len(beams.sentences)
        origin = (torch.arange(size, device=rows.device)[:, None] * self.beam + origin.gather(1, live))[rows].flatten()
        # the source's part moves only when sentences leave
        state = state.reorder(origin) if len(rows) == size else state.select(origin)
        return _Beams(state, beams.sentences[rows], log_probs[rows], tokens[rows])

    def _finish(self, sentences: Tensor, tokens: Tensor, log_probs: Tensor, ends: Tensor) -> None:
        """Keep the best hypotheses that end."""
        divisor = length_divisor(tokens.size(-1) - 1, self.length_penalty)
        for row, rank in (ends[:, : self.beam] & log_probs[:, : self.beam].isfinite()).nonzero().tolist():
            finished = _hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=True)
            best = self.found[int(sentences[row])]
            # the sort is stable: of equal ones the first found
            best[:] = sorted([*best, finished], key=lambda hypothesis: -hypothesis.score)[: self.keep]

    def _undone(self, sentences: Tensor, log_probs: Tensor) -> Tensor:
        """Rows whose best live hypothesis may still beat the worst that is kept."""
        bounds = (log_probs[:, 0] / length_divisor(self.max_length, self.length_penalty)).tolist()
        kept = [self.found[sentence] for sentence in sentences.tolist()]
        worst = [best[-1].score if len(best) == self.keep else -math.inf for best in kept]
        rows = [row for row, (bound, least) in enumerate(zip(bounds, worst, strict=True)) if bound > least]
        return torch.tensor(rows, dtype=torch.long, device=sentences.device)

    def _cut(self, sentences: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Fill up with the best live hypotheses where fewer have finished than are kept."""
        divisor = length_divisor(self.max_length, self.length_penalty)
        for row, sentence in enumerate(sentences.tolist()):
            best = self.found[sentence]
            for rank in range(min(self.beam, self.keep - len(best))):
                if log_probs[row, rank].isfinite():
                    best.append(_hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=False))


def _hypothesis(tokens: Tensor, log_prob: Tensor, divisor: float, *, finished: bool) -> Hypothesis:
    """Hypothesis of tokens that the begin token precedes."""
    value = log_prob.item()
    return Hypothesis(tuple(tokens[1:].tolist()), value, value / divisor, finished)
