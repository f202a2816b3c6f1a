"""The expectation step of an aligner: expected numbers of links, of words without a link, and of jumps, by chunk.

Chunks of a text are independent given the models, so the step is a map over chunks and a sum of their counts, wherever
the chunks are: in memory, or in files that processes of this machine or of a cluster read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pyro_attention.aligner._corpus import Batch, Cells
from pyro_attention.aligner._moves import NO_LINK
from pyro_attention.aligner.hmm import Posterior, markov_posterior, uniform_posterior

__all__ = [
    "Both",
    "Chunk",
    "ChunkCounts",
    "Chunks",
    "Counts",
    "Direction",
    "Step",
    "direction_posterior",
    "expected_counts",
]

Infer = Callable[[Tensor, Tensor, Tensor, Tensor], Posterior]
_UNKNOWN_WORD = 1e-6  # p(word | NULL) of a word that the vocabulary has no room for, so that evidence stays above 0


@dataclass(frozen=True)
class Direction:
    """Model of how the words of one language are made of those of the other one.

    Attributes:
        translation: p(word | word of the other language) of every pair, ``[P]``.
        null: p(word | NULL), ``[V]``.
        jumps: Weights of the jumps, ``[2 K + 1]``.
    """

    translation: Tensor
    null: Tensor
    jumps: Tensor

    def tables(self, unknown_pair: float, unknown_word: float) -> tuple[Tensor, Tensor]:
        """Return probabilities of pairs and of words without a link; after them those of padding and of the unknown."""
        pairs = torch.cat([self.translation, self.translation.new_tensor([0.0, unknown_pair])])
        return pairs, torch.cat([self.null, self.null.new_tensor([1 / NO_LINK, unknown_word])])


Both = tuple[Direction, Direction]


def direction_posterior(
    posterior: Infer, side: int, direction: Direction, tables: tuple[Tensor, Tensor], batch: Batch, cells: Cells,
    potentials: Tensor | None = None, *, least: float = 0.0,
) -> Posterior:  # fmt: skip
    """Compute the posterior of a batch in one direction.

    Args:
        posterior: With the prior of jumps or without.
        side: 0 for target words given the source, 1 for source words given the target: the posterior of the links is
            then ``[N, M, B]``.
        direction: The model.
        tables: Its :meth:`Direction.tables`.
        batch: Sentence pairs.
        cells: Their pairs of words.
        potentials: What the probabilities of links are multiplied by, ``[M, N, B]``; 0 at padded places.
        least: p(word | word) that the potentials multiply at least.
    """
    pairs, nulls = tables
    words, lengths = (batch.target, batch.source)[side], (batch.source_lengths, batch.target_lengths)[side]
    emission = cells.gather(pairs)
    if potentials is not None:
        emission.clamp_min_(least).mul_(potentials)
    if side:
        emission = emission.transpose(0, 1)
    return posterior(emission, nulls.index_select(0, words.flatten()).view(words.shape), direction.jumps, lengths)


@dataclass(frozen=True)
class Step:
    """Kind of an expectation step.

    Attributes:
        markov: With the prior of jumps, otherwise all source words are equally probable.
        agree: The posteriors of both directions are multiplied, and the product is what both learn from.
        parts: Number of parts of the text, whose counts stay apart.
    """

    markov: bool
    agree: bool
    parts: int


@dataclass(frozen=True)
class Counts:
    """Expected numbers of one part of a text.

    Attributes:
        pairs: Links of every pair of words, ``[P]``, for both directions, or one for both where they agree.
        null: Words without a link, ``[V]``, by direction.
        jumps: Jumps of every width, ``[2 K + 1]``, by direction.
    """

    pairs: list[Tensor]
    null: list[Tensor]
    jumps: list[Tensor]

    @classmethod
    def zeros(cls, num_pairs: int, model: Both, *, agree: bool) -> Counts:
        """Return counts of nothing, for as many pairs of words, and for the words of a model."""
        pairs = [model[0].null.new_zeros(num_pairs) for _ in range(1 if agree else 2)]
        return cls(
            pairs,
            [torch.zeros_like(direction.null) for direction in model],
            [torch.zeros_like(direction.jumps) for direction in model],
        )

    def add(self, counts: Counts, pairs: Tensor | None = None) -> None:
        """Add other counts, whose pairs of words have these numbers among all, or are all."""
        for total, more in zip(self.pairs, counts.pairs, strict=True):
            if pairs is None:
                total += more
            else:
                total.index_add_(0, pairs, more)
        for total, more in zip((*self.null, *self.jumps), (*counts.null, *counts.jumps), strict=True):
            total += more


@dataclass(frozen=True)
class ChunkCounts:
    """Counts of a chunk.

    Attributes:
        parts: Counts of every part.
        pairs: Numbers of the pairs of words of the chunk among those of the text, ``[U]``; None where it has all.
    """

    parts: Sequence[Counts]
    pairs: Tensor | None


class Chunks(Protocol):
    """A text in chunks, over which the expectation step is a map."""

    def expected(self, models: Sequence[Both], step: Step) -> Iterator[ChunkCounts]:
        """Yield the counts of every chunk, in order, by one model, or by one for each part."""


@dataclass(frozen=True)
class Chunk:
    """Sentence pairs in memory.

    Attributes:
        batches: The pairs in batches.
        cells: The pairs of words of every batch, among those of the chunk.
        pairs: Numbers of the pairs of words of the chunk among those of the text, ``[U]``; None where it has all.
    """

    batches: Sequence[Batch]
    cells: Sequence[Cells]
    pairs: Tensor | None = None

    def expected(self, models: Sequence[Both], step: Step) -> Iterator[ChunkCounts]:
        """Yield the counts of this chunk; see :class:`Chunks`."""
        yield ChunkCounts(expected_counts(self, models, step), self.pairs)


def expected_counts(chunk: Chunk, models: Sequence[Both], step: Step) -> list[Counts]:
    """Compute the counts of a chunk, by part.

    Args:
        chunk: Sentence pairs.
        models: One model, or one for each part; their translations are of the pairs of words of the chunk.
        step: Which step is done.
    """
    tables = [[direction.tables(0.0, _UNKNOWN_WORD) for direction in model] for model in models]
    num_pairs = len(models[0][0].translation)
    sums = []
    for part in range(step.parts):
        model = models[part % len(models)]
        zeros = Counts.zeros(num_pairs + 2, model, agree=step.agree)
        null = [
            direction.null.new_zeros(len(direction.null) + 2) for direction in model
        ]  # padding and unknown words are counted
        sums.append(Counts(zeros.pairs, null, zeros.jumps))
    for batch, cells in zip(chunk.batches, chunk.cells, strict=True):
        number = batch.part % len(models)
        infer = partial(markov_posterior, count_jumps=batch.counts_jumps) if step.markov else uniform_posterior
        posteriors = [
            direction_posterior(infer, side, models[number][side], tables[number][side], batch, cells)
            for side in (0, 1)
        ]
        links = [posteriors[0].links, posteriors[1].links.transpose(0, 1)]
        if step.agree:
            links = [links[0].mul_(links[1])]
        counts = sums[batch.part]
        for total, values in zip(counts.pairs, links, strict=True):
            cells.add_to(total, values)
        for side, (posterior, words) in enumerate(zip(posteriors, (batch.target, batch.source), strict=True)):
            counts.null[side].index_add_(0, words.flatten(), posterior.null.flatten())
            counts.jumps[side].add_(posterior.jumps)
    return [
        Counts([total[:-2] for total in counts.pairs], [total[:-2] for total in counts.null], counts.jumps)
        for counts in sums
    ]
