"""Words as numbers, the pairs of words that stand together in a pair of sentences, and batches of sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batch", "Sentences", "Vocabulary", "WordPairs", "batches", "word_pairs"]

_CELLS = 500_000  # of a batch, padding included
_ROUNDING, _ROWS = 4, 64  # source lengths of a batch with more rows are alike up to this
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
        words: dict[str, int] = {}
        numbers = [words.setdefault(word, len(words)) for sentence in sentences for word in sentence]
        for word in more:
            words.setdefault(word, len(words))
        share = torch.bincount(torch.tensor(numbers, dtype=torch.int64), minlength=len(words)).float()
        return cls(words, share / share.sum())

    def stems(self, length: int) -> Tensor:
        """Number of the first letters of every word, ``[V]``."""
        seen: dict[str, int] = {}
        return torch.tensor([seen.setdefault(word[:length], len(seen)) for word in self.words])

    def numbers(self, sentence: Sequence[str]) -> Ints:
        """Number of each word, V where it is unknown."""
        return np.fromiter((self.words.get(word, len(self.words)) for word in sentence), np.int64, len(sentence))


@dataclass(frozen=True)
class Batch:
    """Sentence pairs of alike lengths, padded.

    Attributes:
        rows: Their places in the text.
        source, target: Numbers of the words, ``[N, B]`` and ``[M, B]``, V where unknown or padded.
        source_lengths, target_lengths: Numbers of words, ``[B]``.
    """

    rows: list[int]
    source: Tensor
    target: Tensor
    source_lengths: Tensor
    target_lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """True at words of both sides, ``[M, B, N]``."""
        source, target = (torch.arange(words.size(0)) for words in (self.source, self.target))
        return (target[:, None] < self.target_lengths)[..., None] & (source < self.source_lengths[:, None])


def batches(
    vocabularies: tuple[Vocabulary, Vocabulary], source_words: Sentences, target_words: Sentences
) -> Iterator[Batch]:
    """Sentence pairs in batches of alike lengths; a pair with an empty side is in none."""
    source, target = (
        [vocabulary.numbers(sentence) for sentence in side]
        for vocabulary, side in zip(vocabularies, (source_words, target_words), strict=True)
    )
    padding = len(vocabularies[0].words), len(vocabularies[1].words)
    sizes = [(len(s), len(t)) for s, t in zip(source, target, strict=True)]
    group = [-(-num_source // _ROUNDING) for num_source, _ in sizes]
    rows: list[int] = []
    longest = (0, 0)
    for place in sorted(
        (place for place, size in enumerate(sizes) if min(size)), key=lambda i: (group[i], sizes[i][1])
    ):
        longer = (max(longest[0], sizes[place][0]), max(longest[1], sizes[place][1]))
        full = (len(rows) + 1) * longer[0] * longer[1] > _CELLS
        if rows and (full or (len(rows) >= _ROWS and group[place] != group[rows[-1]])):
            yield _batch(rows, source, target, padding)
            rows, longer = [], sizes[place]
        rows.append(place)
        longest = longer
    if rows:
        yield _batch(rows, source, target, padding)


def _batch(rows: list[int], source: Sequence[Ints], target: Sequence[Ints], padding: tuple[int, int]) -> Batch:
    sides, lengths = [], []
    for words, number in zip((source, target), padding, strict=True):
        lengths.append(torch.tensor([len(words[row]) for row in rows]))
        padded = np.full((int(lengths[-1].max()), len(rows)), number)
        for column, row in enumerate(rows):
            padded[: len(words[row]), column] = words[row]
        sides.append(torch.from_numpy(padded))
    return Batch(rows, *sides, *lengths)


@dataclass(frozen=True)
class WordPairs:
    """Pairs of words, in the order of their keys.

    Attributes:
        keys: ``source * (V + 1) + target``, ``[P]``, V words of the target.
        num_targets: V.
    """

    keys: Ints
    num_targets: int

    @property
    def source(self) -> Tensor:
        """Number of the source word of every pair, ``[P]``."""
        return torch.from_numpy(self.keys // (self.num_targets + 1))

    @property
    def target(self) -> Tensor:
        """Number of the target word of every pair, ``[P]``."""
        return torch.from_numpy(self.keys % (self.num_targets + 1))

    def find(self, source: Tensor, target: Tensor) -> Tensor:
        """Place of each pair of words of two tensors that broadcast, int32; P where it is none."""
        wanted, inverse = (source * (self.num_targets + 1) + target).unique(return_inverse=True)
        places = np.searchsorted(self.keys, wanted.numpy())
        known = np.take(self.keys, places, mode="clip") == wanted.numpy()
        return torch.from_numpy(np.where(known, places, len(self.keys)).astype(np.int32))[inverse]


def word_pairs(text: Sequence[Batch], num_targets: int, more: Ints) -> WordPairs:
    """All pairs of words that stand together in a text, and those of the keys ``more``."""
    found = [more]
    for batch in text:
        keys = batch.source.mT * (num_targets + 1) + batch.target[..., None]
        found.append(keys[batch.mask].unique().numpy())
    return WordPairs(np.unique(np.concatenate(found)), num_targets)
