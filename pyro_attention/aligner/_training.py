r"""Expectation maximization of both directions of an aligner, apart or in agreement.

The E-step takes posteriors of all links of the text from :mod:`pyro_attention.aligner.hmm`. In agreement the posteriors
of both directions are multiplied, link by link, and the product takes their place in both M-steps; NULL keeps its own.
The M-step of the translations is the mean of their posterior under a Dirichlet prior of ``PRIOR_WEIGHT`` observations,
whose mean backs off to the stems of the words, their first letters, on average over stems of several lengths:

.. math::
    p(t \mid s) = \frac{n(s, t) + w\, \pi(t \mid s)}{n(s) + w}, \quad
    \pi(t \mid s) = \frac{n(\bar s, \bar t)}{n(\bar s)}\, \frac{n(t)}{n(\bar t)}

A text may be divided into parts, whose counts stay apart. In the last M-steps there is one model for each part, by the
counts of all other parts, and the next E-step aligns each part by the model that lacks it: the words of a pair do not
confirm themselves.

Source: Liang, Taskar and Klein (2006), Alignment by Agreement; counts of the other parts: Jelinek and Mercer (1980),
Interpolated Estimation of Markov Source Parameters from Sparse Data (deleted estimation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Event

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_attention.aligner._backoff import Backoff
from pyro_attention.aligner._corpus import Division, Ints, Sentences, Vocabulary, WordPairs, batches, word_pairs
from pyro_attention.aligner._expectation import Both, Chunk, Chunks, Counts, Direction, Step

__all__ = [
    "ITERATIONS", "PARTS", "PRIOR_WEIGHT", "TrainingText", "divide", "known_counts", "known_keys", "part_count",
    "train",
]  # fmt: skip

ITERATIONS = (5, 5)  # of the model without jumps, and of the one with them
_MUCH, _MORE = 50_000, 3  # pairs of which held-out text is more probable after so many iterations more
PRIOR_WEIGHT = 1.0
_REACH = 60  # words; longer jumps are as probable as this one
_COUNTED = 2500  # pairs at least, which tell of the jumps, as these are few
_SMOOTHING = 0.02  # share of the jumps that is spread over all widths
PARTS, _FEWEST = 2, 50  # of a text, each of which one member lacks; pairs of a text from which on it has them
_FEW = 2000  # pairs up to which only the last M-step is by parts; of more pairs the last two


def part_count(num_pairs: int) -> int:
    """Return the number of parts that a text of so many sentence pairs is divided into by default."""
    return PARTS if num_pairs >= _FEWEST else 1


def divide(num_pairs: int, parts: int) -> Division:
    """Return how so many sentence pairs are divided into parts."""
    return Division(parts, max(1, num_pairs // _COUNTED))


@dataclass(frozen=True)
class TrainingText:
    """Sentence pairs to train on.

    Attributes:
        vocabularies: Words of the source and of the target.
        pairs: Pairs of words that stand together.
        chunks: The sentence pairs.
        num_sentences: Number of sentence pairs.
        parts: Number of their parts.
        known: Numbers of observations of the pairs of words that the user knows, ``[P]``; empty where there are none.
    """

    vocabularies: tuple[Vocabulary, Vocabulary]
    pairs: WordPairs
    chunks: Chunks
    num_sentences: int
    parts: int
    known: Tensor

    @classmethod
    def of(
        cls, source: Sentences, target: Sentences, known: Mapping[tuple[str, str], float], parts: int
    ) -> TrainingText:
        """Return sentence pairs in memory, as one chunk."""
        vocabularies = (
            Vocabulary.of(source, [word for word, _ in known]), Vocabulary.of(target, [word for _, word in known])
        )  # fmt: skip
        text = list(batches(vocabularies, source, target, division=divide(len(source), parts)))
        sizes = len(vocabularies[0].words), len(vocabularies[1].words)
        pairs, cells = word_pairs(text, sizes, known_keys(vocabularies, known))
        observed = known_counts(vocabularies, pairs, known)
        return cls(vocabularies, pairs, Chunk(text, cells), len(source), parts, observed)

    def start(self) -> Both:
        """Return a model to which all pairs of words are alike."""
        jumps = torch.full((2 * _REACH + 1,), 1 / (2 * _REACH + 1))
        first, second = (
            Direction(torch.full((len(self.pairs.keys),), 1 / len(words.words)), words.share, jumps)
            for words in self.vocabularies[::-1]
        )
        return first, second

    def counts(self, models: Sequence[Both], step: Step) -> list[Counts]:
        """Return the expected counts of every part."""
        sums: list[Counts] = []
        for chunk in self.chunks.expected(models, step):
            if chunk.pairs is None:  # all of the text
                return list(chunk.parts)
            if not sums:
                sums = [Counts.zeros(len(self.pairs.keys), models[0], agree=step.agree) for _ in range(step.parts)]
            for total, part in zip(sums, chunk.parts, strict=True):
                total.add(part, chunk.pairs)
        return sums

    def maximize(self, counts: Sequence[Counts], backoff: Backoff) -> Both:
        """Return the model of the sum of some counts."""
        summed = [sum(parts[1:], parts[0]) for parts in zip(*(part.pairs for part in counts), strict=True)]
        totals = [backoff.totals(pairs + self.known if len(self.known) else pairs) for pairs in summed]
        directions = []
        for given, words in enumerate(self.vocabularies[::-1]):
            translation = backoff.translation(totals[given % len(totals)], given)
            jumps = sum((part.jumps[given] for part in counts), torch.zeros(2 * _REACH + 1))
            jumps = jumps + (_SMOOTHING * jumps.sum() + 1e-6) / len(jumps)
            null = sum((part.null[given] for part in counts), PRIOR_WEIGHT * words.share)
            directions.append(Direction(translation, null / null.sum(), jumps / jumps.sum()))
        return directions[0], directions[1]


def known_keys(vocabularies: tuple[Vocabulary, Vocabulary], known: Mapping[tuple[str, str], float]) -> Ints:
    """Return the keys of the pairs of words that the user knows."""
    first, second = vocabularies
    keys = [first.words[s] * (len(second.words) + 2) + second.words[t] for s, t in known]
    return np.array(keys, dtype=np.int64)


def known_counts(
    vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs, known: Mapping[tuple[str, str], float]
) -> Tensor:
    """Return the numbers of observations of all pairs of words, ``[P]``; empty where the user knows none."""
    if not known:
        return torch.zeros(0)
    counts = torch.zeros(len(pairs.keys))
    positions = np.searchsorted(pairs.keys, known_keys(vocabularies, known))
    counts[positions] = torch.tensor(list(known.values()), dtype=counts.dtype)
    return counts


def train(text: TrainingText, backoff: Backoff, *, agree: bool, stop: Event, progress: bool = False) -> list[Both]:
    """Train both directions, from source to target and back, apart or in agreement, unless somebody says stop.

    Returns:
        A model for each part of the text, by the counts of all other parts.
    """
    more = _MORE if text.num_sentences >= _MUCH else 0
    markov = [False] * ITERATIONS[0] + [True] * (ITERATIONS[1] + more)
    name = "in agreement" if agree else "apart"
    models = [text.start()]
    for left, with_jumps in zip(
        range(len(markov))[::-1], tqdm(markov, desc=name, unit="iteration", position=int(agree), disable=not progress),
        strict=True,
    ):  # fmt: skip
        if stop.is_set():
            break
        counts = text.counts(models, Step(with_jumps, agree, text.parts))
        if left < (1 if text.num_sentences < _FEW else 2) and text.parts > 1:
            models = [text.maximize([*counts[:part], *counts[part + 1 :]], backoff) for part in range(text.parts)]
        else:
            models = [text.maximize(counts, backoff)]
    return models
