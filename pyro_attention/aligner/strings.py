r"""Evidence of links in the letters of two words: names, numbers and cognates are alike in many languages.

Every pair of words has a class by how alike its words are written: for words, by the number of letters of the shorter
one and by the share of pairs of neighboring letters that both have (Dice's coefficient); for numbers and punctuation
marks, by whether they are the same. The class c of a pair is a second observation beside the words themselves. It
multiplies p(word | word) by the likelihood ratio

.. math::
    \lambda_c = \frac{p(c \mid \text{linked})}{p(c \mid \text{not linked})},

and p(word | NULL) by 1. The ratios are learned by expectation maximization on the text that is aligned: the expected
shares of the classes among the links and among all other pairs of words that stand together, without a gold link. In
training the same evidence is not used: the tables of words would learn what the letters have said already.

Source: the coefficient is that of Dice (1945), Measures of the Amount of Ecologic Association Between Species; cognates
as evidence: Simard, Foster and Isabelle (1992), Using Cognates to Align Sentences in Bilingual Corpora.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pyro_attention.aligner._corpus import Sentences

__all__ = ["CLASSES", "SpelledText", "Spelling", "string_ratios"]

_LENGTHS = (3, 5)  # letters of the shorter word, up to which lengths are one class, and then another
_SHARES = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.999)  # largest coefficients of classes; above the last one words are equal
_BITS = 128  # pairs of letters are hashed into so many numbers
_TOGETHER = 200_000  # pairs of words whose classes are computed together, so that little memory is taken
_MARKS = 5  # classes with numbers or punctuation marks
CLASSES = _MARKS + (len(_LENGTHS) + 1) * (len(_SHARES) + 1)
_REMEMBERED = 200_000  # words whose spelling is computed once
_PRIOR = 0.5  # links that are added to every class, and as large a share of the other pairs


@dataclass(frozen=True)
class Spelling:
    """How the words of a side are written.

    Attributes:
        kind: 0 for words, 1 for words with digits, 2 for punctuation marks, ``[V]``.
        same: A number that is equal for equal numbers and for equal punctuation marks, ``[V]``.
        length: Number of letters, ``[V]``.
        bits: Pairs of neighboring letters, hashed, ``[V, 2]`` of 64 bits each.
    """

    kind: NDArray[np.int8]
    same: NDArray[np.int64]
    length: NDArray[np.int64]
    bits: NDArray[np.uint64]

    @classmethod
    def of(cls, words: Sequence[str]) -> Spelling:
        """Read the letters of words; accents count for nothing, as languages write names with and without."""
        rows = [_spelled(word) for word in words]
        kind, same, length, low, high = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
        bits = np.array([low, high], dtype=np.uint64).T.reshape(-1, 2)
        return cls(np.array(kind, np.int8), np.array(same, np.int64), np.array(length, np.int64), bits)

    @cached_property
    def count(self) -> NDArray[np.int64]:
        """Number of bits that are set, ``[V]``."""
        return _popcount(self.bits)

    def classes(self, source: NDArray[np.int64], other: Spelling, target: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the class of every pair of a word of this side and one of the other, by their numbers."""
        first, second = self.kind[source], other.kind[target]
        shared = _popcount(self.bits[source] & other.bits[target])
        dice = 2 * shared / np.maximum(1, self.count[source] + other.count[target])
        length = np.searchsorted(_LENGTHS, np.minimum(self.length[source], other.length[target]))
        classes = _MARKS + length * (len(_SHARES) + 1) + np.searchsorted(_SHARES, dice)
        equal = self.same[source] == other.same[target]
        classes = np.where((first == 1) & (second == 1), np.where(equal, 0, 1), classes)  # numbers
        classes = np.where((first == 2) & (second == 2), np.where(equal, 2, 3), classes)  # marks
        return np.where(first != second, 4, classes)


class SpelledText:
    """The words of sentence pairs with their spelling, and the classes of their pairs of words.

    Args:
        source: Words of every sentence.
        target: Words of the translations.
    """

    def __init__(self, source: Sentences, target: Sentences) -> None:
        self._sides = [_spelled_side(side) for side in (source, target)]

    def classes(self, rows: Sequence[int]) -> Tensor:
        """Return the class of every pair of words of these sentence pairs, ``[M, N, B]``; any class for padding."""
        (source, spelling), (target, other) = self._sides
        first, second = (pad_sequence([side[row] for row in rows]).numpy() for side in (source, target))
        classes = np.empty((len(second), len(first), len(rows)), dtype=np.int32)
        step = max(1, _TOGETHER // max(1, first.size))
        for start in range(0, len(second), step):
            part = classes[start : start + step]
            words, other_words = (
                np.broadcast_to(numbers, part.shape) for numbers in (first[None], second[start : start + step, None])
            )
            part[:] = spelling.classes(words, other, other_words)
        return torch.from_numpy(classes)


def _spelled_side(sentences: Sentences) -> tuple[Sequence[Tensor], Spelling]:
    """Numbers of the words of every sentence, and their spelling."""
    words = {word: number for number, word in enumerate(dict.fromkeys(chain.from_iterable(sentences)))}
    flat = torch.tensor([words[word] for word in chain.from_iterable(sentences)], dtype=torch.int64)
    return flat.split([len(sentence) for sentence in sentences]), Spelling.of(list(words))


def string_ratios(linked: Tensor, together: Tensor) -> Tensor:
    """Return the likelihood ratio of every class, ``[CLASSES]``, by expected numbers of links and of all word pairs.

    Args:
        linked: Expected number of links of every class.
        together: Number of pairs of words of every class that stand together.
    """
    unlinked = (together - linked).clamp_min(0)
    smoothing = _PRIOR / linked.sum().clamp_min(1)
    shares = [counts / counts.sum().clamp_min(1) for counts in (linked, unlinked)]
    return (shares[0] + smoothing) / (shares[1] + smoothing)


@lru_cache(maxsize=_REMEMBERED)
def _spelled(word: str) -> tuple[int, int, int, int, int]:
    """Kind, number for equality, letters and both halves of the bits of a word."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", word.lower()) if not unicodedata.combining(sign))
    if any(sign.isdigit() for sign in plain):
        digits = "".join(str(unicodedata.digit(sign)) for sign in plain if sign.isdigit())  # of whatever script
        return 1, crc32(digits.encode()), len(plain), 0, 0
    if not any(sign.isalnum() for sign in plain):
        return 2, crc32(_MARK.get(plain, plain).encode("utf-8", "surrogatepass")), len(plain), 0, 0
    bits = 0
    padded = f" {plain} "
    for start in range(len(padded) - 1):
        bits |= 1 << (crc32(padded[start : start + 2].encode("utf-8", "surrogatepass")) % _BITS)
    return 0, 0, len(plain), bits & (2**64 - 1), bits >> 64


# marks that languages write in several ways
_MARK = dict.fromkeys(["«", "»", "“", "”", "„", "``", "''", "‟", '"', "「", "」", "『", "』"], '"')
_MARK |= dict.fromkeys(["‘", "’", "‚", "`", "´", "'", "‹", "›"], "'") | dict.fromkeys(["–", "—", "―", "-", "‐"], "-")
_MARK |= {"。": ".", "।": ".", "۔": ".", "،": ",", "、": ",", "؟": "?", "；": ";", "؛": ";", "…": "..."}


def _popcount(bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of bits set in every row."""
    parts = np.ascontiguousarray(bits).view(np.uint16)
    counts: NDArray[np.int64] = _COUNTS[parts].sum(-1, dtype=np.int64)
    return counts


_COUNTS = np.array([bin(number).count("1") for number in range(2**16)], dtype=np.uint8)
