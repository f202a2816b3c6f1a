r"""Beam search, and sentences that are drawn.

Hypotheses are ranked by :math:`\log p(y \mid x) / ((5 + |y|) / 6)^\alpha`, where ``|y|`` counts the end token, not the
begin token. Hypotheses that end are finished if they are among the best ``beam`` continuations, by log probability, of
all live ones; the best ``beam`` others go on. The search of a sentence stops when no live hypothesis can beat the worst
of the ``keep`` best finished ones any more: log probabilities only fall, so one of log probability l never scores above
``l / ((5 + max_length) / 6) ** alpha``. That a finished hypothesis has the highest log probability is not enough, since
a longer one may outscore it.

The decoder is fed with the expected context, also of a model that was trained with ``input_feed="sampled"``. Padding
of the source never changes a result, and the batch none beyond rounding (with posterior draws: up to the noise drawn).

Source: Wu et al. (2016), Google's Neural Machine Translation System, section 7; Deng et al. (2018), Latent Alignment
and Variational Attention, section 5; Paulus et al. (2018), A Deep Reinforced Model for Abstractive Summarization,
section 2.5, for ``no_repeat``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from models.decoder import AttentionDecoder, DecoderState
from models.decoding.next_word import DEFAULT, Inference, next_word_log_probs, target_alignments
from pyro_attention.posterior.predictive import seeded


@dataclass(frozen=True)
class Hypothesis:
    """A sentence that was found.

    Attributes:
        tokens: Ids after the begin token; the end token is the last where there is one.
        log_prob: Sum of the words' log probabilities, the end token's included.
        score: What it is ranked by, the log probability over the length penalty.
        finished: Whether it ends by the end token; else it was cut at the largest length.
        alignments: Rows on the simplex, one for each token, over the sentence's own words, ``[len(tokens), N]``: the
            alignment given the token, or attention weights, see :func:`word_alignment`. None if not asked for. What a
            row lacks to one is the probability of NULL in a model that has it.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool
    alignments: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def words(self) -> tuple[int, ...]:
        """The tokens without the end token."""
        return self.tokens[:-1] if self.finished else self.tokens


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
    inference.check(model)

    def advance(state: DecoderState, words: Tensor) -> tuple[Tensor, DecoderState]:
        step = model.read(state, words, k_max=inference.k_max)
        return next_word_log_probs(model, step, inference), step.state

    with _evaluation(model), seeded(seed):
        start = model.start(model.encode(source, source_mask), source_mask)
        found = search_words(
            start, advance, begin=begin, end=end, beam=beam, max_length=max_length, length_penalty=length_penalty,
            keep=keep, no_repeat=no_repeat,
        )  # fmt: skip
        return _align(model, start, found, begin=begin, inference=inference) if alignments else found


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
    inference.check(model)
    with _evaluation(model), seeded(seed):
        state = model.start(model.encode(source, source_mask), source_mask)
        word = torch.full((len(source),), begin, device=source.device)
        drawn: list[tuple[Tensor, Tensor]] = []
        ended = torch.zeros_like(source_mask[:, 0])
        while len(drawn) < max_length and not ended.all():
            step = model.read(state, word, k_max=inference.k_max)
            state, words = step.state, next_word_log_probs(model, step, inference)
            word = (words / temperature).softmax(1).multinomial(1).squeeze(1)
            drawn.append((word, words.gather(1, word[:, None]).squeeze(1)))
            ended = ended | (word == end)
        found = []
        rows = (torch.stack(column, 1).tolist() for column in zip(*drawn, strict=True))
        for tokens, log_probs in zip(*rows, strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            total = sum(log_probs[:length])
            found.append(Hypothesis(tuple(tokens[:length]), total, total, end in tokens))
        return found


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
        if not 1 <= self.keep <= self.beam or self.max_length < 1 or not 0 <= self.length_penalty < math.inf:
            raise ValueError(
                f"keep is {self.keep}, beam {self.beam}, max_length {self.max_length}, length_penalty "
                f"{self.length_penalty}, expected 1 <= keep <= beam, a length of at least 1 and a penalty of at least 0"
            )
        if self.no_repeat is not None and self.no_repeat < 1:
            raise ValueError(f"no_repeat is {self.no_repeat}, expected a number of tokens of at least 1, or None")

    def advance(self, beams: _Beams, words: Tensor, state: SearchState) -> _Beams | None:
        """Continue the hypotheses by the best of words of log probabilities ``[R * beam, V]``; keep those that end.

        None where no other can win any more; the state is the decoder's after the step to these words.
        """
        words = words.view(*beams.log_probs.shape, -1)
        if self.no_repeat is not None:
            words = words.masked_fill(_repeats(beams.tokens, self.no_repeat, words.size(-1)), -math.inf)
        total = (beams.log_probs.unsqueeze(-1) + words).flatten(1)
        if total.isnan().any():
            raise ValueError("log probabilities are NaN; check the model's parameters")
        log_probs, index = total.topk(min(2 * self.beam, total.size(1)))  # at most `beam` of these end
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
        divisor = _length_divisor(tokens.size(-1) - 1, self.length_penalty)
        for row, rank in (ends[:, : self.beam] & log_probs[:, : self.beam].isfinite()).nonzero().tolist():
            finished = _hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=True)
            best = self.found[int(sentences[row])]
            # the sort is stable: of equal ones the first found
            best[:] = sorted([*best, finished], key=lambda hypothesis: -hypothesis.score)[: self.keep]

    def _undone(self, sentences: Tensor, log_probs: Tensor) -> Tensor:
        """Rows whose best live hypothesis may still beat the worst that is kept."""
        bounds = (log_probs[:, 0] / _length_divisor(self.max_length, self.length_penalty)).tolist()
        kept = [self.found[sentence] for sentence in sentences.tolist()]
        worst = [best[-1].score if len(best) == self.keep else -math.inf for best in kept]
        rows = [row for row, (bound, least) in enumerate(zip(bounds, worst, strict=True)) if bound > least]
        return torch.tensor(rows, dtype=torch.long, device=sentences.device)

    def _cut(self, sentences: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Fill up with the best live hypotheses where fewer have finished than are kept."""
        divisor = _length_divisor(self.max_length, self.length_penalty)
        for row, sentence in enumerate(sentences.tolist()):
            best = self.found[sentence]
            for rank in range(min(self.beam, self.keep - len(best))):
                if log_probs[row, rank].isfinite():
                    best.append(_hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=False))


def _hypothesis(tokens: Tensor, log_prob: Tensor, divisor: float, *, finished: bool) -> Hypothesis:
    """Hypothesis of tokens that the begin token precedes."""
    value = log_prob.item()
    return Hypothesis(tuple(tokens[1:].tolist()), value, value / divisor, finished)


def _length_divisor(length: int, length_penalty: float) -> float:
    return float(((5 + length) / 6) ** length_penalty)


def _repeats(tokens: Tensor, size: int, vocabulary: int) -> Tensor:
    """Of ids ``[..., L]``, whether a next word would make so many in a row that are there already, ``[..., V]``."""
    found = torch.zeros(*tokens.shape[:-1], vocabulary, dtype=torch.int64, device=tokens.device)
    if tokens.size(-1) < size:
        return found.bool()
    there = tokens.unfold(-1, size, 1)
    same = (there[..., :-1] == tokens[..., None, tokens.size(-1) - size + 1 :]).all(-1)
    return found.scatter_add(-1, there[..., -1], same.long()).bool()


def _align(
    model: AttentionDecoder,
    start: DecoderState,
    found: Sequence[Sequence[Hypothesis]],
    *,
    begin: int,
    inference: Inference,
) -> list[list[Hypothesis]]:
    """The hypotheses of every sentence with their alignments, by teacher forcing from the state before the words."""
    pairs = [(sentence, hypothesis) for sentence, hypotheses in enumerate(found) for hypothesis in hypotheses]
    aligned: list[list[Hypothesis]] = [[] for _ in found]
    if not pairs:
        return aligned
    device, longest = start.memory.device, max(len(hypothesis.tokens) for _, hypothesis in pairs)
    padded = [[begin, *h.tokens, *[begin] * (longest - len(h.tokens))] for _, h in pairs]
    tokens = torch.tensor(padded, device=device)
    state = start.select(torch.tensor([sentence for sentence, _ in pairs], device=device))
    rows = target_alignments(model, state, tokens[:, :-1], tokens[:, 1:], inference)
    sizes = start.mask.sum(1).tolist()
    for (sentence, hypothesis), weights in zip(pairs, rows, strict=True):
        own = weights[: len(hypothesis.tokens), : sizes[sentence]].clone()  # without the padding behind a view
        aligned[sentence].append(replace(hypothesis, alignments=own))
    return aligned


@contextmanager
def _evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the context."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)
