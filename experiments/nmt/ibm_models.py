"""IBM Models 1 and 2 of NLTK: baselines for word alignment, trained on sentence pairs alone.

NLTK trains them; the links are read from its tables here, because NLTK's own are no fair baseline on sentences it was
not trained on. There it gives a word that it never saw to the last source word, one of two equally good source words
to the later, and a pair of words that never occurred together the probability of the uniform start, which is often
larger than what training left to those that did.

It is plain Python: 5000 pairs of 20 by 20 words take about 30 s in Model 1 and 6 minutes in Model 2. NLTK counts a
target word that a sentence repeats as if it occurred there once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from nltk.translate import AlignedSent, IBMModel1, IBMModel2
from torch import Tensor

from pyro_attention.analysis import Alignment, hard_alignment

__all__ = ["IBMAligner", "SentencePair", "train_ibm"]

SentencePair = tuple[Sequence[str], Sequence[str]]


@dataclass(frozen=True)
class IBMAligner:
    """A trained model, in plain dictionaries, so that it pickles.

    Attributes:
        translation: ``translation[target word][source word]``, the probability of a target word given a source word;
            the source word None is NULL, which stands for no word.
        positions: Model 2: ``positions[N, M][j][i]``, the probability that target word j, from 0, has source word i;
            i = 0 is NULL, the words count from 1. Empty for Model 1.
    """

    translation: Mapping[str, Mapping[str | None, float]]
    positions: Mapping[tuple[int, int], Sequence[Sequence[float]]]

    def link_probabilities(self, source: Sequence[str], target: Sequence[str]) -> Tensor:
        """Posterior of every link, ``[M, N]``, float64.

        What a row lacks to one is the probability of no link; a row of zeros is a word never seen in training, or
        never with these source words. Model 2 knows nothing of the positions in sentences of lengths it never saw, and
        there takes all as equally probable, as Model 1 does.
        """
        words = [None, *source]
        joint = torch.tensor(
            [[self.translation.get(word, {}).get(other, 0.0) for other in words] for word in target],
            dtype=torch.float64,
        )
        positions = self.positions.get((len(source), len(target)))
        if positions is not None:
            joint = joint * torch.tensor(positions, dtype=torch.float64)
        sums = joint.sum(-1, keepdim=True)
        return (joint / sums.masked_fill(sums == 0, 1.0))[:, 1:]

    def align(self, source: Sequence[str], target: Sequence[str]) -> Alignment:
        """The most probable source word of every target word, the first of equal ones; none where NULL is better."""
        return hard_alignment(self.link_probabilities(source, target))


def train_ibm(pairs: Sequence[SentencePair], *, model: Literal[1, 2] = 1, iterations: int = 5) -> IBMAligner:
    """Train a model of target words given source words, as attention is; for the other direction swap the sides.

    Args:
        pairs: Words of (source, target) sentences, as they are to be compared: lower-case them before.
        model: 1, or 2 which starts from ``2 * iterations`` of Model 1.
        iterations: Iterations of expectation maximisation.
    """
    # NLTK translates from mots to words, so each of words chooses one of mots
    corpus = [AlignedSent(words=list(target), mots=list(source)) for source, target in pairs]
    trained = (IBMModel1 if model == 1 else IBMModel2)(corpus, iterations)
    together: dict[str, set[str | None]] = {}
    for source, target in pairs:
        for word in target:
            together.setdefault(word, {None}).update(source)
    translation = {
        word: {other: trained.translation_table[word][other] for other in others} for word, others in together.items()
    }
    table = trained.alignment_table
    lengths = {(len(source), len(target)) for source, target in pairs} if model == 2 else set()
    positions = {
        (n, m): [[table[i][j][n][m] for i in range(n + 1)] for j in range(1, m + 1)] for n, m in sorted(lengths)
    }
    return IBMAligner(translation, positions)
