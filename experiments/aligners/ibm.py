r"""IBM Model 1, trained by expectation maximization.

Every target word has one source word or none (NULL), with equal probabilities:
:math:`p(t_j \mid s) = \frac{1}{N + 1} \sum_i p(t_j \mid s_i)`. All word pairs of a text are one array, so that 19 000
sentence pairs take seconds.

Source: Brown et al. (1993), The Mathematics of Statistical Machine Translation, section 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SentencePair = tuple[Sequence[str], Sequence[str]]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class IBMModel1:
    """Translation probabilities of IBM Model 1; words outside of the training text have no link.

    Attributes:
        source: Number of each source word, counted from 1, as 0 is NULL.
        target: Number of each target word.
        translation: p(target word | source word) by :func:`pair_keys`.
    """

    source: dict[str, int]
    target: dict[str, int]
    translation: dict[int, float]

    def link_probabilities(self, source: Sequence[str], target: Sequence[str]) -> Tensor:
        """Return the posterior of every link, ``[M, N]``, float64; one minus the sum of a row is that of no link."""
        keys = pair_keys(self.source, self.target, source, target)
        joint = np.array([[self.translation.get(key, 0.0) for key in row] for row in keys.tolist()])
        sums = joint.sum(-1, keepdims=True)
        return torch.from_numpy((joint / np.where(sums == 0, 1, sums))[:, 1:])


def pair_keys(sources: dict[str, int], targets: dict[str, int], source: Sequence[str], target: Sequence[str]) -> Ints:
    """Return a number for every word pair, ``[M, 1 + N]``, with NULL first, and -1 for unknown words."""
    left = np.array([0, *(sources.get(word, -1) for word in source)])
    right = np.array([targets.get(word, -1) for word in target])
    keys = right[:, None] * (len(sources) + 1) + left
    return np.where((left < 0) | (right[:, None] < 0), -1, keys)


def train_ibm1(pairs: Sequence[SentencePair], *, iterations: int = 5) -> IBMModel1:
    """Train a model of target words given source words; swap the sides for the other direction."""
    sources = {word: number for number, word in enumerate(dict.fromkeys(w for s, _ in pairs for w in s), 1)}
    targets = {word: number for number, word in enumerate(dict.fromkeys(w for _, t in pairs for w in t))}
    # every target word has a row of cells, for NULL and for the source words of its sentence
    cells = np.concatenate([pair_keys(sources, targets, *pair).ravel() for pair in pairs])
    keys, inverse = np.unique(cells, return_inverse=True)
    pair = inverse.astype(np.int32)  # saves memory, as there are many cells
    source_word = keys % (len(sources) + 1)
    widths = np.concatenate([np.full(len(target), len(source) + 1) for source, target in pairs])
    starts = widths.cumsum() - widths
    translation: Floats = np.ones(len(keys))
    for _ in range(iterations):
        joint = translation[pair]
        posterior = joint / np.repeat(np.add.reduceat(joint, starts), widths)
        counts = np.bincount(pair, posterior, len(keys))
        translation = counts / np.bincount(source_word, counts, len(sources) + 1)[source_word]
    return IBMModel1(sources, targets, dict(zip(keys.tolist(), translation.tolist(), strict=True)))
