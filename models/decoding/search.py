r"""Beam search, and random sentences.

Hypotheses are ranked by :math:`\log p(y \mid x) / ((5 + |y|) / 6)^\alpha`, where ``|y|`` counts the end token but not
the begin token. In every step the best ``beam`` continuations of all live hypotheses are considered, by log
probability: those that end are finished. The best ``beam`` continuations that do not end become the live hypotheses.

The search of a sentence stops when no live hypothesis can beat the worst of the ``keep`` best finished ones. Log
probabilities only fall, so a hypothesis of log probability l never scores above ``l / ((5 + max_length) / 6) **
alpha``. A finished hypothesis with the highest log probability does not suffice to stop, since a longer one may score
better.

The decoder is fed with the expected context, also for a model that was trained with ``input_feed="sampled"``. Padding
of the source does not change a result. The other sentences of the batch change it only by rounding, or by other noise
of posterior draws.

Source: Wu et al. (2016), Google's Neural Machine Translation System, section 7; Deng et al. (2018), Latent Alignment
and Variational Attention, section 5; Paulus et al. (2018), A Deep Reinforced Model for Abstractive Summarization,
section 2.5, for ``no_repeat``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from models.decoder import AttentionDecoder, DecoderState
from models.decoding.next_word import DEFAULT, Inference, next_word_log_probs, target_alignments
from pyro_attention.posterior.passes import in_evaluation
from pyro_attention.posterior.predictive import seeded


@dataclass(frozen=True)
class Hypothesis:
    """Sentence found by a search.

    Attributes:
        tokens: Ids after the begin token; the last one is the end token if the sentence is finished.
        log_prob: Sum of the log probabilities of the tokens, including the end token.
        score: Log probability divided by the length penalty, by which hypotheses are ranked.
        finished: Whether the sentence ends with the end token; otherwise it was cut at the largest length.
        alignments: Alignment of each token to the source, or its attention weights, ``[len(tokens), N]`` without
            padding; see :func:`word_alignment`. None if not requested.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float
    finished: bool
    alignments: Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def words(self) -> tuple[int, ...]:
        """Tokens without the end token."""
        return self.tokens[:-1] if self.finished else self.tokens


class SearchState(Protocol):
    """Interface of a decoder state with a row for each hypothesis, such as :class:`DecoderState`."""

    @property
    def memory(self) -> Tensor:
        """Encoded source, ``[B, N, memory]``."""

    def reorder(self, rows: Tensor) -> Self:
        """Return the state whose row i is row ``rows[i]``, which must belong to the same source."""

    def select(self, rows: Tensor) -> Self:
        """Return the given rows with their source."""


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
    """Return the best sentences of a beam search, with the model in evaluation mode.

    Args:
        model: The model.
        source: The source, ids ``[B, N]`` or features ``[B, N, F]``.
        source_mask: False at the padding, which comes last, ``[B, N]``.
        begin: Id of the begin token.
        end: Id of the end token.
        beam: Number of live hypotheses of a sentence.
        max_length: Largest number of tokens, including the end token.
        length_penalty: Exponent alpha >= 0; 0 ranks by log probability.
        keep: Number of hypotheses to return, at most ``beam``.
        no_repeat: No sequence of this many tokens occurs twice in a hypothesis; 3 is usual for networks that repeat
            themselves. None allows repetitions.
        inference: How the attention is integrated out of each word.
        alignments: Also compute the alignments, by another pass over the result.
        seed: Seed of the posterior draws; the state of the global generator does not change.

    Returns:
        For each sentence up to ``keep`` hypotheses, the best first. If fewer are finished, the best hypotheses that
        were cut at ``max_length`` follow, with ``finished=False``.

    Raises:
        ValueError: Shapes are wrong, a sentence has no words, ids or options are out of range, log probabilities are
            NaN, or the options do not fit the model.

    Example:
        >>> from models.nmt import Translation, TranslationSizes
        >>> model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
        >>> source = torch.randint(10, (2, 5))
        >>> best = beam_search(model, source, source >= 0, begin=1, end=2, beam=3, keep=2, max_length=6)
        >>> [len(hypotheses) for hypotheses in best], best[0][0].score >= best[0][1].score
        ([2, 2], True)
    """
    inference.check(model)

    def advance(state: DecoderState, words: Tensor) -> tuple[Tensor, DecoderState]:
        step = model.read(state, words, k_max=inference.k_max)
        return next_word_log_probs(model, step, inference), step.state

    with in_evaluation(model), seeded(seed):
        start = model.start(model.encode(source, source_mask), source_mask)
        best = search_words(
            start, advance, begin=begin, end=end, beam=beam, max_length=max_length, length_penalty=length_penalty,
            keep=keep, no_repeat=no_repeat,
        )  # fmt: skip
        return _align(model, start, best, begin=begin, inference=inference) if alignments else best


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
    """Run the search of :func:`beam_search` for any decoder; other arguments are described there.

    Args:
        start: State of the decoder before the first word, a row for each source.
        advance: Takes a state and the ids ``[R]`` of the last words, and returns the log probabilities ``[R, V]`` of
            the next words and the state after the last words.

    Returns:
        For each sentence its hypotheses as by :func:`beam_search`, without alignments.

    Raises:
        ValueError: Options are out of range, or log probabilities are NaN.
    """
    search = _Search(end, beam, max_length, length_penalty, keep, no_repeat, [[] for _ in start.memory])
    beams: _Beams | None = _Beams.begin(start, begin, beam)
    while beams is not None:
        words, state = advance(beams.state, beams.tokens[..., -1].flatten())
        beams = search.advance(beams, words, state)
    return search.best


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
    r"""Draw one sentence for each source, word by word from :math:`p(y \mid x, y_{<j})^{1/T}`, normalized.

    Repeat a row of the source for several sentences. The draws depend on the batch but not on its padding, unless
    weights are drawn (``samples``). The other arguments are those of :func:`beam_search`, which takes the most probable
    word at every step with ``beam=1, length_penalty=0``. Log probability and score of a hypothesis are those of the
    model, at T = 1.

    Args:
        temperature: T > 0; below 1 probable words become more probable.

    Raises:
        ValueError: The temperature is not positive and finite, or as by :func:`beam_search`.

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
    with in_evaluation(model), seeded(seed):
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
        hypotheses = []
        rows = (torch.stack(column, 1).tolist() for column in zip(*drawn, strict=True))
        for tokens, log_probs in zip(*rows, strict=True):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            total = sum(log_probs[:length])
            hypotheses.append(Hypothesis(tuple(tokens[:length]), total, total, end in tokens))
        return hypotheses


@dataclass(frozen=True)
class _Beams:
    """Live hypotheses of the R sentences that are still searched.

    Attributes:
        state: State of the decoder with R * beam rows.
        sentences: Index of each sentence in the batch, ``[R]``.
        log_probs: Log probabilities in falling order, ``[R, beam]``; -inf for a missing hypothesis.
        tokens: Ids beginning with the begin token, ``[R, beam, L]``.
    """

    state: SearchState
    sentences: Tensor
    log_probs: Tensor
    tokens: Tensor

    @classmethod
    def begin(cls, start: SearchState, begin: int, beam: int) -> _Beams:
        """Return one hypothesis without words for each sentence; all other hypotheses are missing."""
        size, memory = len(start.memory), start.memory
        sentences = torch.arange(size, device=memory.device)
        log_probs = torch.full((size, beam), -math.inf, device=memory.device)
        log_probs = log_probs.to(torch.promote_types(memory.dtype, torch.float32))
        log_probs[:, 0] = 0
        tokens = torch.full((size, beam, 1), begin, device=memory.device)
        return cls(start.select(sentences.repeat_interleave(beam)), sentences, log_probs, tokens)


@dataclass(frozen=True)
class _Search:
    """Options of a search, and the best finished hypotheses of each sentence in ``best``."""

    end: int
    beam: int
    max_length: int
    length_penalty: float
    keep: int
    no_repeat: int | None
    best: list[list[Hypothesis]]

    def __post_init__(self) -> None:
        if not 1 <= self.keep <= self.beam or self.max_length < 1 or not 0 <= self.length_penalty < math.inf:
            raise ValueError(
                f"keep is {self.keep}, beam {self.beam}, max_length {self.max_length}, length_penalty "
                f"{self.length_penalty}, expected 1 <= keep <= beam, a length of at least 1 and a penalty of at least 0"
            )
        if self.no_repeat is not None and self.no_repeat < 1:
            raise ValueError(f"no_repeat is {self.no_repeat}, expected a number of tokens of at least 1, or None")

    def advance(self, beams: _Beams, words: Tensor, state: SearchState) -> _Beams | None:
        """Extend the hypotheses by their best next words, and store those that end.

        Args:
            beams: The live hypotheses.
            words: Log probabilities of the next words, ``[R * beam, V]``.
            state: State of the decoder after the last words.

        Returns:
            The live hypotheses, or None if none can win any more.
        """
        words = words.view(*beams.log_probs.shape, -1)
        if self.no_repeat is not None:
            words = words.masked_fill(_repeats(beams.tokens, self.no_repeat, words.size(-1)), -math.inf)
        total = (beams.log_probs.unsqueeze(-1) + words).flatten(1)
        if total.isnan().any():
            raise ValueError("log probabilities are NaN; check the model's parameters")
        log_probs, index = total.topk(min(2 * self.beam, total.size(1)))  # each hypothesis ends at most once
        origin, word = index // words.size(-1), index % words.size(-1)
        before = beams.tokens.gather(1, origin.unsqueeze(-1).expand(-1, -1, beams.tokens.size(-1)))
        tokens, ends = torch.cat([before, word.unsqueeze(-1)], -1), word == self.end
        length = tokens.size(-1) - 1
        self._finish(beams.sentences, tokens, log_probs, ends)
        live = ends.to(torch.uint8).sort(dim=1, stable=True).indices[:, : self.beam]
        log_probs = log_probs.masked_fill(ends, -math.inf).gather(1, live)
        tokens = tokens.gather(1, live.unsqueeze(-1).expand(-1, -1, length + 1))
        rows = self._unfinished(beams.sentences, log_probs)
        if not len(rows) or length == self.max_length:
            self._cut(beams.sentences, tokens, log_probs)
            return None
        size = len(beams.sentences)
        origin = (torch.arange(size, device=rows.device)[:, None] * self.beam + origin.gather(1, live))[rows].flatten()
        # the encoded source is copied only when sentences are done
        state = state.reorder(origin) if len(rows) == size else state.select(origin)
        return _Beams(state, beams.sentences[rows], log_probs[rows], tokens[rows])

    def _finish(self, sentences: Tensor, tokens: Tensor, log_probs: Tensor, ends: Tensor) -> None:
        """Store the best hypotheses that end."""
        divisor = _length_divisor(tokens.size(-1) - 1, self.length_penalty)
        for row, rank in (ends[:, : self.beam] & log_probs[:, : self.beam].isfinite()).nonzero().tolist():
            finished = _hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=True)
            best = self.best[int(sentences[row])]
            # the sort is stable, so that earlier hypotheses come first among equal scores
            best[:] = sorted([*best, finished], key=lambda hypothesis: -hypothesis.score)[: self.keep]

    def _unfinished(self, sentences: Tensor, log_probs: Tensor) -> Tensor:
        """Return the rows whose best live hypothesis may still beat the worst stored one."""
        bounds = (log_probs[:, 0] / _length_divisor(self.max_length, self.length_penalty)).tolist()
        stored = [self.best[sentence] for sentence in sentences.tolist()]
        worst = [best[-1].score if len(best) == self.keep else -math.inf for best in stored]
        rows = [row for row, (bound, least) in enumerate(zip(bounds, worst, strict=True)) if bound > least]
        return torch.tensor(rows, dtype=torch.long, device=sentences.device)

    def _cut(self, sentences: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Add the best live hypotheses of sentences with fewer than ``keep`` finished ones."""
        divisor = _length_divisor(self.max_length, self.length_penalty)
        for row, sentence in enumerate(sentences.tolist()):
            best = self.best[sentence]
            for rank in range(min(self.beam, self.keep - len(best))):
                if log_probs[row, rank].isfinite():
                    best.append(_hypothesis(tokens[row, rank], log_probs[row, rank], divisor, finished=False))


def _hypothesis(tokens: Tensor, log_prob: Tensor, divisor: float, *, finished: bool) -> Hypothesis:
    """Return the hypothesis of tokens that start with the begin token."""
    value = log_prob.item()
    return Hypothesis(tuple(tokens[1:].tolist()), value, value / divisor, finished)


def _length_divisor(length: int, length_penalty: float) -> float:
    return float(((5 + length) / 6) ** length_penalty)


def _repeats(tokens: Tensor, size: int, vocabulary: int) -> Tensor:
    """Return whether a next word would complete a sequence of ``size`` ids that already occurs, ``[..., V]``."""
    counts = torch.zeros(*tokens.shape[:-1], vocabulary, dtype=torch.int64, device=tokens.device)
    if tokens.size(-1) < size:
        return counts.bool()
    sequences = tokens.unfold(-1, size, 1)
    same = (sequences[..., :-1] == tokens[..., None, tokens.size(-1) - size + 1 :]).all(-1)
    return counts.scatter_add(-1, sequences[..., -1], same.long()).bool()


def _align(
    model: AttentionDecoder,
    start: DecoderState,
    sentences: Sequence[Sequence[Hypothesis]],
    *,
    begin: int,
    inference: Inference,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of every sentence with their alignments, by teacher forcing from the first state."""
    pairs = [(sentence, hypothesis) for sentence, hypotheses in enumerate(sentences) for hypothesis in hypotheses]
    aligned: list[list[Hypothesis]] = [[] for _ in sentences]
    if not pairs:
        return aligned
    device, longest = start.memory.device, max(len(hypothesis.tokens) for _, hypothesis in pairs)
    padded = [[begin, *h.tokens, *[begin] * (longest - len(h.tokens))] for _, h in pairs]
    tokens = torch.tensor(padded, device=device)
    state = start.select(torch.tensor([sentence for sentence, _ in pairs], device=device))
    rows = target_alignments(model, state, tokens[:, :-1], tokens[:, 1:], inference)
    sizes = start.mask.sum(1).tolist()
    for (sentence, hypothesis), weights in zip(pairs, rows, strict=True):
        alignments = weights[: len(hypothesis.tokens), : sizes[sentence]].clone()  # a view would keep the padding
        aligned[sentence].append(replace(hypothesis, alignments=alignments))
    return aligned
