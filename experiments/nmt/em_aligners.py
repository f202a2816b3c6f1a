r"""Classic word aligners trained by expectation maximisation: IBM Models 1 and 2, and 2 with a diagonal prior.

Every target word has one source word, or none (NULL): :math:`p(t_j \mid s) = \sum_i a(i \mid j, N, M)\, p(t_j \mid
s_i)`. In Model 1 the prior a is uniform; in Model 2 it is a table for every pair of lengths; as in fast_align it falls
with the distance from the diagonal, :math:`a \propto \exp(-\lambda\, |i / N - j / M|)`, with a fixed probability of
NULL, a trained :math:`\lambda` and a Dirichlet prior on the translations.

All pairs of words of a text are one array: Model 2 takes a minute for the 19 000 pairs of Europarl, for which NLTK's in
plain Python takes hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor

__all__ = ["EMAligner", "EMModel", "SentencePair", "train_em"]

EMModel = Literal["ibm1", "ibm2", "diagonal"]
SentencePair = tuple[Sequence[str], Sequence[str]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NULL = 0.08  # probability of no source word under the diagonal prior, as in fast_align
_PSEUDO_COUNT = 0.01  # of the Dirichlet prior, as in fast_align
_STRENGTHS = (0.1, 14.0)  # bounds of lambda, as in fast_align
_NEWTON_STEPS = 4


@dataclass
class EMAligner:
    """A trained model; a word never seen in training has no link.

    Attributes:
        model: The prior of the alignment.
        source, target: Numbers of the words; source words count from 1, as 0 is NULL.
        translation: p(target word | source word) by :meth:`pair_keys`, of pairs that occurred in a sentence pair.
        strength: Lambda of the diagonal prior.
        positions: Prior of Model 2, ``[M, 1 + N]`` by (N, M); uniform for other lengths.
    """

    model: EMModel
    source: dict[str, int]
    target: dict[str, int]
    translation: dict[int, float] = field(default_factory=dict)
    strength: float = 4.0
    positions: dict[tuple[int, int], Floats] = field(default_factory=dict)

    def pair_keys(self, source: Sequence[str], target: Sequence[str]) -> Ints:
        """A number for every pair of words, ``[M, 1 + N]``, NULL first; below 0 where a word was never seen."""
        left = np.array([0, *(self.source.get(word, -1) for word in source)])
        right = np.array([self.target.get(word, -1) for word in target])
        keys = right[:, None] * (len(self.source) + 1) + left
        return np.where((left < 0) | (right[:, None] < 0), -1, keys)

    def prior(self, num_source: int, num_target: int) -> Floats:
        """Probability of every source word at every place, ``[M, 1 + N]``, NULL first."""
        found = self.positions.get((num_source, num_target))
        if found is not None:
            return found
        if self.model != "diagonal":
            return np.full((num_target, num_source + 1), 1 / (num_source + 1))
        weights = np.exp(-self.strength * _distance(num_source, num_target))
        weights *= (1 - _NULL) / weights.sum(-1, keepdims=True)
        return np.concatenate([np.full((num_target, 1), _NULL), weights], 1)

    def link_probabilities(self, source: Sequence[str], target: Sequence[str]) -> Tensor:
        """Posterior of every link, ``[M, N]``, float64; what a row lacks to one is the probability of no link."""
        keys = self.pair_keys(source, target)
        translation = [[self.translation.get(key, 0.0) for key in row] for row in keys.tolist()]
        joint = np.array(translation) * self.prior(len(source), len(target))
        sums = joint.sum(-1, keepdims=True)
        return torch.from_numpy((joint / np.where(sums == 0, 1, sums))[:, 1:])


def train_em(pairs: Sequence[SentencePair], *, model: EMModel, iterations: int = 5) -> EMAligner:
    """Train a model of target words given source words, as attention is; for the other direction swap the sides.

    Args:
        pairs: Words of (source, target) sentences, as they are to be compared: lower-case them before.
        model: The prior of the alignment.
        iterations: Iterations of expectation maximisation; before Model 2 twice as many of Model 1, as in NLTK.
    """
    aligner = EMAligner(
        "ibm1" if model == "ibm2" else model,
        {word: number for number, word in enumerate(dict.fromkeys(w for s, _ in pairs for w in s), 1)},
        {word: number for number, word in enumerate(dict.fromkeys(w for _, t in pairs for w in t))},
    )
    cells = _Cells(aligner, pairs)
    if model == "ibm2":
        cells.iterate(aligner, 2 * iterations)
        aligner.model = "ibm2"
    cells.iterate(aligner, iterations)
    aligner.translation = dict(zip(cells.keys.tolist(), cells.translation.tolist(), strict=True))
    return aligner


def _distance(num_source: int, num_target: int) -> Floats:
    """Distance of every pair of places from the diagonal, ``[M, N]``; places count from 1, as in fast_align."""
    places = np.arange(1, num_source + 1) / num_source
    found: Floats = np.abs(places - (np.arange(1, num_target + 1) / num_target)[:, None])
    return found


class _Cells:
    """Every target word with NULL and every source word of its sentence: a row of cells for each target word.

    Attributes:
        keys: The different pairs of words.
        translation: Their translation probabilities.
    """

    def __init__(self, aligner: EMAligner, pairs: Sequence[SentencePair]) -> None:
        self.lengths = [(len(source), len(target)) for source, target in pairs]
        cells = np.concatenate([aligner.pair_keys(*pair).ravel() for pair in pairs])
        self.keys, pair = np.unique(cells, return_inverse=True)
        self.pair = pair.astype(np.int32)  # there are many cells
        self.source_word = self.keys % (len(aligner.source) + 1)
        self.translation: Floats = np.ones(len(self.keys))
        self.widths = np.concatenate([np.full(m, n + 1) for n, m in self.lengths])
        self.starts = self.widths.cumsum() - self.widths

    def iterate(self, aligner: EMAligner, iterations: int) -> None:
        """Iterations of expectation maximisation, from the translations found so far."""
        prior = _PRIORS[aligner.model](self)
        for _ in range(iterations):
            posterior = self.translation[self.pair] * prior.weights(aligner)
            posterior /= self.in_rows(np.add.reduceat(posterior, self.starts))
            prior.update(aligner, posterior)
            counts = np.bincount(self.pair, posterior, len(self.keys))
            self._translate(aligner, counts.astype(np.float64))

    def in_rows(self, values: Floats) -> Floats:
        """A number for each row, in all of its cells."""
        return np.repeat(values, self.widths)

    def _translate(self, aligner: EMAligner, counts: Floats) -> None:
        """Translation probabilities of expected counts: normalised, or the mean of their logs under a Dirichlet."""
        words = len(aligner.source) + 1
        if aligner.model == "diagonal":
            smooth = counts + _PSEUDO_COUNT
            total = np.bincount(self.source_word, smooth, words)
            self.translation = np.exp(digamma(smooth) - digamma(total)[self.source_word])
        else:
            self.translation = counts / np.bincount(self.source_word, counts, words)[self.source_word]


class _Uniform:
    """Model 1: all source words are equally probable, and constants of a row make no difference."""

    def __init__(self, cells: _Cells) -> None:
        self.cells = cells

    def weights(self, _: EMAligner) -> Floats:
        return np.ones(1)

    def update(self, _: EMAligner, posterior: Floats) -> None:
        pass


class _Positions(_Uniform):
    """Model 2: a probability for every pair of places in sentences of every pair of lengths."""

    def __init__(self, cells: _Cells) -> None:
        super().__init__(cells)
        sizes = [(n + 1) * m for n, m in cells.lengths]
        firsts, total = dict[tuple[int, int], int](), 0
        for size, length in zip(sizes, cells.lengths, strict=True):
            total += size if firsts.setdefault(length, total) == total else 0
        self.firsts, self.total = firsts, total
        ranges = [
            np.arange(firsts[length], firsts[length] + size) for size, length in zip(sizes, cells.lengths, strict=True)
        ]
        self.place = np.concatenate(ranges).astype(np.int32)
        self.table: Floats = np.ones(total)

    def weights(self, _: EMAligner) -> Floats:
        return self.table[self.place]

    def update(self, aligner: EMAligner, posterior: Floats) -> None:
        counts = np.bincount(self.place, posterior, self.total)
        for (n, m), first in self.firsts.items():
            rows = counts[first : first + m * (n + 1)].reshape(m, n + 1)
            aligner.positions[n, m] = rows / rows.sum(-1, keepdims=True)
        self.table = np.concatenate([aligner.positions[length].ravel() for length in self.firsts])


class _Diagonal(_Uniform):
    """The diagonal prior, whose strength maximises the expected log likelihood (Newton steps)."""

    def __init__(self, cells: _Cells) -> None:
        super().__init__(cells)
        columns = {(n, m): np.pad(_distance(n, m), ((0, 0), (1, 0))).ravel() for n, m in set(cells.lengths)}
        self.distance = np.concatenate([columns[length] for length in cells.lengths]).astype(np.float32)

    def weights(self, aligner: EMAligner) -> Floats:
        weights = (1 - _NULL) * self._shares(aligner.strength)
        weights[self.cells.starts] = _NULL
        return weights

    def update(self, aligner: EMAligner, posterior: Floats) -> None:
        cells = self.cells
        linked = posterior.copy()
        linked[cells.starts] = 0
        mass, seen = np.add.reduceat(linked, cells.starts), linked @ self.distance
        for _ in range(_NEWTON_STEPS):
            shares = self._shares(aligner.strength)
            mean = np.add.reduceat(shares * self.distance, cells.starts)
            square = np.add.reduceat(shares * self.distance**2, cells.starts)
            # of the log likelihood: first derivative, and minus the second
            slope, curvature = mass @ mean - seen, mass @ (square - mean**2)
            if curvature <= 0:  # one source word everywhere
                return
            aligner.strength = float(np.clip(aligner.strength + slope / curvature, *_STRENGTHS))

    def _shares(self, strength: float) -> Floats:
        """Probabilities among the source words, without NULL."""
        shares: Floats = np.exp(-strength * self.distance.astype(np.float64))
        shares[self.cells.starts] = 0
        return shares / self.cells.in_rows(np.add.reduceat(shares, self.cells.starts))


_PRIORS = {"ibm1": _Uniform, "ibm2": _Positions, "diagonal": _Diagonal}
