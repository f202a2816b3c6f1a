"""Words as numbers, the pairs of words that stand together in a pair of sentences, and batches of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = [
    "Batch",
    "Cells",
    "Division",
    "Sentences",
    "UniqueKeys",
    "Vocabulary",
    "WordPairs",
    "batches",
    "is_padding",
    "unique_keys",
    "word_pairs",
]

_CELLS = 400_000  # of a batch, padding included
_ROUNDING, _ROWS = 4, 64  # lengths of a batch with more rows are alike up to this
Sentences = Sequence[Sequence[str]]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Vocabulary:
    """The words of a language.

    Attributes:
        words: Number of every word, from 0.
        share: Its share among all words of the text, ``[V]``.
    """

    words: dict[str, int]
    share: Tensor

    @classmethod
    def of(cls, sentences: Sentences, more: Sequence[str] = ()) -> Vocabulary:
        """Return the words of a text and ``more``, in the order in which they occur."""
        return cls.from_counts(Counter(chain.from_iterable(sentences)), more)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], more: Sequence[str] = ()) -> Vocabulary:
        """Return the words that were counted and ``more``, in this order."""
        words = {word: number for number, word in enumerate(dict.fromkeys([*counts, *more]))}
        totals = np.fromiter((counts.get(word, 0) for word in words), np.int64, len(words))
        share = torch.from_numpy(totals).to(torch.get_default_dtype())
        return cls(words, share / share.sum())

    def stems(self, length: int) -> Tensor:
        """Return the number of the first letters of every word, ``[V]``."""
        numbers: dict[str, int] = {}
        stems = (numbers.setdefault(word[:length], len(numbers)) for word in self.words)
        return torch.from_numpy(np.fromiter(stems, np.int64, len(self.words)))

    def numbers(self, sentences: Sentences) -> Sequence[Tensor]:
        """Return the number of each word of every sentence; V stands for padding, and V + 1 for an unknown word."""
        flat = np.fromiter(map(self.words.get, chain.from_iterable(sentences), repeat(len(self.words) + 1)), np.int64)
        numbers: tuple[Tensor, ...] = torch.from_numpy(flat).split([len(sentence) for sentence in sentences])
        return numbers


@dataclass(frozen=True)
class Batch:
    """Sentence pairs of alike lengths, padded.

    Attributes:
        rows: Numbers of the pairs in the text.
        source, target: Numbers of the words, ``[N, B]`` and ``[M, B]``; padding too.
        source_lengths, target_lengths: Numbers of words, ``[B]``.
        part: Part of the text that all of its pairs belong to.
        counts_jumps: Whether the jumps of its pairs are counted in training.
    """

    rows: Sequence[int]
    source: Tensor
    target: Tensor
    source_lengths: Tensor
    target_lengths: Tensor
    part: int = 0
    counts_jumps: bool = True


class Division(NamedTuple):
    """How the pairs of a text are divided for training, by their number in the text alone.

    So it does not matter in which chunks the text is read.

    Attributes:
        parts: Number of parts, each of every so-manieth pair.
        jumps: Of so many pairs of a part one tells of the jumps, as these are few.
    """

    parts: int = 1
    jumps: int = 1

    def group(self, number: int) -> tuple[int, bool]:
        """Return the part of a pair, and whether its jumps are counted."""
        return number % self.parts, number // self.parts % self.jumps == 0


_UNDIVIDED = Division()


def batches(
    vocabularies: tuple[Vocabulary, Vocabulary],
    source_words: Sentences,
    target_words: Sentences,
    *,
    division: Division = _UNDIVIDED,
    first: int = 0,
) -> Iterator[Batch]:
    """Yield sentence pairs in batches of alike lengths; a pair with an empty side is in none.

    Args:
        vocabularies: Words of the source and of the target.
        source_words: Words of every sentence.
        target_words: Words of the translations.
        division: The pairs of a batch are of one part, and the jumps of all of them are counted, or of none.
        first: Number of the first pair in the text.
    """
    source, target = (
        vocabulary.numbers(side) for vocabulary, side in zip(vocabularies, (source_words, target_words), strict=True)
    )
    padding = len(vocabularies[0].words), len(vocabularies[1].words)
    sizes = [(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    group = [
        (division.group(number), num_source // _ROUNDING, num_target // _ROUNDING)
        for number, (num_source, num_target) in enumerate(sizes, first)
    ]
    rows: list[int] = []
    longest = (0, 0)

    def batch() -> Batch:
        part, counts_jumps = group[rows[0]][0]
        sides = [[words[row] for row in rows] for words in (source, target)]
        first_side, second_side = (
            pad_sequence(words, padding_value=number) for words, number in zip(sides, padding, strict=True)
        )
        source_lengths, target_lengths = (torch.tensor([len(sentence) for sentence in words]) for words in sides)
        numbers = [first + row for row in rows]
        return Batch(numbers, first_side, second_side, source_lengths, target_lengths, part, counts_jumps)

    for row in sorted((row for row, size in enumerate(sizes) if min(size)), key=lambda i: group[i]):
        longer = (max(longest[0], sizes[row][0]), max(longest[1], sizes[row][1]))
        full = (len(rows) + 1) * longer[0] * longer[1] > _CELLS
        # pairs of other parts are never in one batch, those of other lengths are while it has few rows
        divided = bool(rows) and group[row][0] != group[rows[-1]][0]
        if rows and (full or divided or (len(rows) >= _ROWS and group[row] != group[rows[-1]])):
            yield batch()
            rows, longer = [], sizes[row]
        rows.append(row)
        longest = longer
    if rows:
        yield batch()


class Cells(NamedTuple):
    """The pairs of words of a batch, each once, so that the sums of a batch are made in a small place.

    Attributes:
        pairs: Their numbers among the pairs of the text, int32 ``[U]``; P stands for padding, and P + 1 for unknown.
        inverse: Which of these every link has, int32 ``[M, N, B]``.
    """

    pairs: Tensor
    inverse: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """Return the value of every link by those of the pairs of the text, ``[M, N, B]``."""
        of_batch = values.index_select(0, self.pairs)
        return of_batch.index_select(0, self.inverse.flatten()).view(self.inverse.shape)

    def add_to(self, sums: Tensor, values: Tensor) -> None:
        """Add values of the links to the sums of the pairs of the text."""
        of_batch = sums.new_zeros(len(self.pairs)).index_add_(0, self.inverse.flatten(), values.flatten())
        sums.index_add_(0, self.pairs, of_batch)


@dataclass(frozen=True)
class WordPairs:
    """Pairs of words, in the order of their keys.

    Attributes:
        keys: ``source * (V + 2) + target``, ``[P]``, V words of the target.
        sizes: Numbers of words of the source and of the target.
    """

    keys: Ints
    sizes: tuple[int, int]

    @property
    def source(self) -> Tensor:
        """Number of the source word of every pair, ``[P]``."""
        return torch.from_numpy(self.keys // (self.sizes[1] + 2))

    @property
    def target(self) -> Tensor:
        """Number of the target word of every pair, ``[P]``."""
        return torch.from_numpy(self.keys % (self.sizes[1] + 2))

    def find(self, batch: Batch) -> Cells:
        """Return the pairs of words of a batch."""
        return self.cells(unique_keys(batch, self.sizes))

    def cells(self, keys: UniqueKeys) -> Cells:
        """Return the pairs of words of a batch by their keys."""
        positions = np.searchsorted(self.keys, keys.keys)
        known = np.take(self.keys, positions, mode="clip") == keys.keys if len(self.keys) else np.zeros(1, dtype=bool)
        numbers = np.where(known, positions, len(self.keys) + ~is_padding(keys.keys, self.sizes))
        return Cells(torch.from_numpy(numbers.astype(np.int32)), torch.from_numpy(keys.inverse))


class UniqueKeys(NamedTuple):
    """The keys of a batch.

    Attributes:
        keys: Every key once, padding among them, ``[U]``.
        inverse: Which of these every link has, int32 ``[M, N, B]``.
    """

    keys: Ints
    inverse: NDArray[np.int32]


def word_pairs(text: Sequence[Batch], sizes: tuple[int, int], more: Ints) -> tuple[WordPairs, list[Cells]]:
    """Return all pairs of words that stand together in a text or are ``more``, and those of every batch."""
    of_batches = [unique_keys(batch, sizes) for batch in text]
    # faster than np.unique, which makes a table of hashes
    keys = np.sort(np.concatenate([more, *(part.keys[~is_padding(part.keys, sizes)] for part in of_batches)]))
    pairs = WordPairs(keys[np.diff(keys, prepend=-1) > 0], sizes)
    return pairs, [pairs.cells(part) for part in of_batches]


def unique_keys(batch: Batch, sizes: tuple[int, int]) -> UniqueKeys:
    """Return the keys of a batch."""
    if batch.source.size(1) == 1:  # of one pair, which may be long: every word of it meets every other one
        source, of_source = np.unique(batch.source[:, 0], return_inverse=True)
        target, of_target = np.unique(batch.target[:, 0], return_inverse=True)
        keys = (source[:, None] * (sizes[1] + 2) + target).ravel()
        row, column = of_target.ravel().astype(np.int32), of_source.ravel().astype(np.int32)
        return UniqueKeys(keys, (column * np.int32(len(target)) + row[:, None])[:, :, None])
    cells = batch.source * (sizes[1] + 2) + batch.target[:, None]
    keys, inverse = np.unique(cells, return_inverse=True)
    return UniqueKeys(keys, inverse.reshape(cells.shape).astype(np.int32))  # NumPy has given it flat before 2.0


def is_padding(keys: Ints, sizes: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which keys have a padded side."""
    padded: NDArray[np.bool_] = (keys // (sizes[1] + 2) == sizes[0]) | (keys % (sizes[1] + 2) == sizes[1])
    return padded
