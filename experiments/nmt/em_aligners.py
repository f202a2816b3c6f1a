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
    """A trained model; a word never seen in training has no link."""

    model: EMModel
    source: dict[str, int]  # numbers of the words, from 1, as 0 is NULL
    target: dict[str, int]
    translation: dict[int, float] = field(default_factory=dict)  # p(target word | source word) by pair_keys
    strength: float = 4.0  # lambda of the diagonal prior
    positions: dict[tuple[int, int], Floats] = field(default_factory=dict)  # prior of Model 2, [M, 1 + N] by (N, M)

    def pair_keys(self, source: Sequence[str], target: Sequence[str]) -> Ints:
        """A number for every pair of words, ``[M, 1 + N]``, NULL first; below 0 where a word was never seen."""
        left = np.array([0, *(self.source.get(word, -1) for word in source)])
        right = np.array([self.target.get(word, -1) for word in target])
        keys = right[:, None] * (len(self.source) + 1) + left
        return np.where((left < 0) | (right[:, None] < 0), -1, keys)

    def prior(self, num_source: int, num_target: int) -> Floats:
        """Probability of every source word at every place, ``[M, 1 + N]``, NULL first."""
        if self.model != "diagonal":
            uniform = np.full((num_target, num_source + 1), 1 / (num_source + 1))
            return self.positions.get((num_source, num_target), uniform)
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

    Before the iterations of Model 2 there are twice as many of Model 1, as in NLTK.
    """
    aligner = EMAligner(
        model,
        {word: number for number, word in enumerate(dict.fromkeys(w for s, _ in pairs for w in s), 1)},
        {word: number for number, word in enumerate(dict.fromkeys(w for _, t in pairs for w in t))},
    )
    cells = _Cells(aligner, pairs)
    if model == "diagonal":
        for _ in range(iterations):
            cells.translate(aligner, cells.align_diagonal(aligner))
    else:
        for _ in range(2 * iterations if model == "ibm2" else iterations):
            cells.translate(aligner, cells.posterior(1.0))
        prior: Floats = np.ones(1)
        for _ in range(iterations if model == "ibm2" else 0):
            posterior = cells.posterior(prior)
            prior = cells.count_positions(aligner, posterior)
            cells.translate(aligner, posterior)
    aligner.translation = dict(zip(cells.keys.tolist(), cells.translation.tolist(), strict=True))
    return aligner


def _distance(num_source: int, num_target: int) -> Floats:
    """Distance of every pair of places from the diagonal, ``[M, N]``; places count from 1, as in fast_align."""
    places = np.arange(1, num_source + 1) / num_source
    found: Floats = np.abs(places - (np.arange(1, num_target + 1) / num_target)[:, None])
    return found


class _Cells:
    """Every target word with NULL and every source word of its sentence: a row of cells for each target word."""

    def __init__(self, aligner: EMAligner, pairs: Sequence[SentencePair]) -> None:
        self.lengths = [(len(source), len(target)) for source, target in pairs]
        cells = np.concatenate([aligner.pair_keys(*pair).ravel() for pair in pairs])
        self.keys, pair = np.unique(cells, return_inverse=True)
        self.pair = pair.astype(np.int32)  # there are many cells
        self.source_word = self.keys % (len(aligner.source) + 1)
        self.translation: Floats = np.ones(len(self.keys))
        self.widths = np.concatenate([np.full(m, n + 1) for n, m in self.lengths])
        self.starts = self.widths.cumsum() - self.widths

    def posterior(self, prior: Floats | float) -> Floats:
        """Of every cell; constants of a row make no difference to its prior."""
        joint: Floats = self.translation[self.pair] * prior
        return joint / self._in_rows(np.add.reduceat(joint, self.starts))

    def translate(self, aligner: EMAligner, posterior: Floats) -> None:
        """Translation probabilities of expected counts: normalised, or the mean of their logs under a Dirichlet."""
        words = len(aligner.source) + 1
        counts = np.bincount(self.pair, posterior, len(self.keys)).astype(np.float64)
        if aligner.model == "diagonal":
            smooth = counts + _PSEUDO_COUNT
            total = np.bincount(self.source_word, smooth, words)
            self.translation = np.exp(digamma(smooth) - digamma(total)[self.source_word])
        else:
            self.translation = counts / np.bincount(self.source_word, counts, words)[self.source_word]

    def count_positions(self, aligner: EMAligner, posterior: Floats) -> Floats:
        """The prior of Model 2: a probability for every pair of places in sentences of every pair of lengths."""
        aligner.positions = {(n, m): np.zeros((m, n + 1)) for n, m in dict.fromkeys(self.lengths)}
        ends = np.cumsum([(n + 1) * m for n, m in self.lengths])
        for (n, m), cells in zip(self.lengths, np.split(posterior, ends[:-1]), strict=True):
            aligner.positions[n, m] += cells.reshape(m, n + 1)
        for table in aligner.positions.values():
            table /= table.sum(-1, keepdims=True)
        return np.concatenate([aligner.positions[length].ravel() for length in self.lengths])

    def align_diagonal(self, aligner: EMAligner) -> Floats:
        """The posterior under the diagonal prior, whose strength then maximises the likelihood (Newton steps)."""
        columns = {(n, m): np.pad(_distance(n, m), ((0, 0), (1, 0))).ravel() for n, m in set(self.lengths)}
        distance = np.concatenate([columns[length] for length in self.lengths]).astype(np.float32)

        def shares() -> Floats:
            """Probabilities among the source words, without NULL."""
            found: Floats = np.exp(-aligner.strength * distance.astype(np.float64))
            found[self.starts] = 0
            return found / self._in_rows(np.add.reduceat(found, self.starts))

        prior = (1 - _NULL) * shares()
        prior[self.starts] = _NULL
        posterior = self.posterior(prior)
        linked = posterior.copy()
        linked[self.starts] = 0
        mass, seen = np.add.reduceat(linked, self.starts), linked @ distance
        for _ in range(_NEWTON_STEPS):
            found = shares()
            mean, square = (np.add.reduceat(found * distance**power, self.starts) for power in (1, 2))
            # of the log likelihood: first derivative, and minus the second
            slope, curvature = mass @ mean - seen, mass @ (square - mean**2)
            if curvature <= 0:  # one source word everywhere
                break
            aligner.strength = float(np.clip(aligner.strength + slope / curvature, *_STRENGTHS))
        return posterior

    def _in_rows(self, values: Floats) -> Floats:
        """A number for each row, in all of its cells."""
        return np.repeat(values, self.widths)
