"""Words as numbers, the pairs of words that stand together in a pair of sentences, and batches of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["Batch", "Cells", "Sentences", "Vocabulary", "WordPairs", "batches", "word_pairs"]

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
        """The words of a text and ``more``, in the order in which they occur."""
        counts = Counter(chain.from_iterable(sentences))
        words = {word: number for number, word in enumerate(dict.fromkeys([*counts, *more]))}
        share = torch.tensor([counts[word] for word in words]).float()
        return cls(words, share / share.sum())

    def stems(self, length: int) -> Tensor:
        """Number of the first letters of every word, ``[V]``."""
        seen: dict[str, int] = {}
        return torch.tensor([seen.setdefault(word[:length], len(seen)) for word in self.words])

    def numbers(self, sentences: Sentences) -> Sequence[Tensor]:
        """Number of each word of every sentence; V stands for padding, and V + 1 for a word that is unknown."""
        flat = np.fromiter(map(self.words.get, chain.from_iterable(sentences), repeat(len(self.words) + 1)), np.int64)
        found: tuple[Tensor, ...] = torch.from_numpy(flat).split([len(sentence) for sentence in sentences])
        return found


@dataclass(frozen=True)
class Batch:
    """Sentence pairs of alike lengths, padded.

    Attributes:
        rows: Their places in the text.
        source, target: Numbers of the words, ``[N, B]`` and ``[M, B]``; padding too.
        source_lengths, target_lengths: Numbers of words, ``[B]``.
    """

    rows: list[int]
    source: Tensor
    target: Tensor
    source_lengths: Tensor
    target_lengths: Tensor


def batches(
    vocabularies: tuple[Vocabulary, Vocabulary], source_words: Sentences, target_words: Sentences
) -> Iterator[Batch]:
    """Sentence pairs in batches of alike lengths; a pair with an empty side is in none."""
    source, target = (
        vocabulary.numbers(side) for vocabulary, side in zip(vocabularies, (source_words, target_words), strict=True)
    )
    padding = len(vocabularies[0].words), len(vocabularies[1].words)
    sizes = [(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    group = [(num_source // _ROUNDING, num_target // _ROUNDING) for num_source, num_target in sizes]
    rows: list[int] = []
    longest = (0, 0)
    for place in sorted((place for place, size in enumerate(sizes) if min(size)), key=lambda i: group[i]):
        longer = (max(longest[0], sizes[place][0]), max(longest[1], sizes[place][1]))
        full = (len(rows) + 1) * longer[0] * longer[1] > _CELLS
        if rows and (full or (len(rows) >= _ROWS and group[place] != group[rows[-1]])):
            yield _batch(rows, source, target, padding)
            rows, longer = [], sizes[place]
        rows.append(place)
        longest = longer
    if rows:
        yield _batch(rows, source, target, padding)


def _batch(rows: list[int], source: Sequence[Tensor], target: Sequence[Tensor], padding: tuple[int, int]) -> Batch:
    sides = [[words[row] for row in rows] for words in (source, target)]
    padded = (pad_sequence(words, padding_value=number) for words, number in zip(sides, padding, strict=True))
    return Batch(rows, *padded, *(torch.tensor([len(sentence) for sentence in words]) for words in sides))


class Cells(NamedTuple):
    """The pairs of words of a batch, each once, so that the sums of a batch are made in a small place.

    Attributes:
        pairs: Their places among the pairs of the text, int32 ``[U]``; P stands for padding, and P + 1 for unknown.
        inverse: Which of these every link has, int32 ``[M, N, B]``.
    """

    pairs: Tensor
    inverse: Tensor

    def gather(self, values: Tensor) -> Tensor:
        """The value of every link by those of the pairs of the text, ``[M, N, B]``."""
        own = values.index_select(0, self.pairs)
        return own.index_select(0, self.inverse.flatten()).view(self.inverse.shape)

    def add_to(self, sums: Tensor, values: Tensor) -> None:
        """Add values of the links to the sums of the pairs of the text."""
        own = sums.new_zeros(len(self.pairs)).index_add_(0, self.inverse.flatten(), values.flatten())
        sums.index_add_(0, self.pairs, own)


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
        """The pairs of words of a batch."""
        return self._cells(*_unique_keys(batch, self.sizes))

    def _cells(self, wanted: Ints, inverse: NDArray[np.int32]) -> Cells:
        places = np.searchsorted(self.keys, wanted)
        known = np.take(self.keys, places, mode="clip") == wanted
        places = np.where(known, places, len(self.keys) + ~_padded(wanted, self.sizes))
        return Cells(torch.from_numpy(places.astype(np.int32)), torch.from_numpy(inverse))


def word_pairs(text: Sequence[Batch], sizes: tuple[int, int], more: Ints) -> tuple[WordPairs, list[Cells]]:
    """All pairs of words that stand together in a text or are ``more``, and their places in every batch."""
    found = [_unique_keys(batch, sizes) for batch in text]
    # faster than np.unique, which makes a table of hashes
    keys = np.sort(np.concatenate([more, *(part[~_padded(part, sizes)] for part, _ in found)]))
    pairs = WordPairs(keys[np.diff(keys, prepend=-1) > 0], sizes)
    return pairs, [pairs._cells(*one) for one in found]


def _unique_keys(batch: Batch, sizes: tuple[int, int]) -> tuple[Ints, NDArray[np.int32]]:
    """The keys of a batch, padding among them, and the place of each cell's among them."""
    cells = batch.source * (sizes[1] + 2) + batch.target[:, None]
    keys, inverse = np.unique(cells, return_inverse=True)
    return keys, inverse.reshape(cells.shape).astype(np.int32)  # NumPy has given it flat before 2.0


def _padded(keys: Ints, sizes: tuple[int, int]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (keys // (sizes[1] + 2) == sizes[0]) | (keys % (sizes[1] + 2) == sizes[1])
    return found
