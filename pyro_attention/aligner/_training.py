r"""Expectation maximization of both directions of an aligner, apart or in agreement.

The E-step takes posteriors of all links of the text from :mod:`pyro_attention.aligner.hmm`. In agreement the posteriors
of both directions are multiplied, link by link, and the product takes their place in both M-steps; NULL keeps its own.
The M-step of the translations is the mean of their posterior under a Dirichlet prior of ``PRIOR_WEIGHT`` observations,
whose mean backs off to the stems of the words, their first letters, on average over stems of several lengths:

.. math::
    p(t \mid s) = \frac{n(s, t) + w\, \pi(t \mid s)}{n(s) + w}, \quad
    \pi(t \mid s) = \frac{n(\bar s, \bar t)}{n(\bar s)}\, \frac{n(t)}{n(\bar t)}

Source: Liang, Taskar and Klein (2006), Alignment by Agreement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_attention.aligner._corpus import Batch, Sentences, Vocabulary, WordPairs, batches, word_pairs
from pyro_attention.aligner.hmm import NO_LINK, Posterior, markov_posterior, uniform_posterior

__all__ = ["ITERATIONS", "Direction", "Text", "both_posteriors", "train"]

Infer = Callable[[Tensor, Tensor, Tensor, Tensor], Posterior]
ITERATIONS = (5, 8)  # of the model without jumps, and of the one with them
PRIOR_WEIGHT = 1.0
STEMS = (1, 2, 3, 4, 6)  # letters; of those tried the text is most probable with them
_REACH = 60  # words; longer jumps are as probable as this one
_SMOOTHING = 0.02  # share of the jumps that is spread over all widths


@dataclass(frozen=True)
class Direction:
    """How the words of one language are made of those of the other one.

    Attributes:
        translation: p(word | word of the other language) of every pair, ``[P]``.
        null: p(word | NULL), ``[V]``.
        jumps: Weights of the jumps, ``[2 K + 1]``.
    """

    translation: Tensor
    null: Tensor
    jumps: Tensor

    def emission(self, cells: Tensor, unknown: float) -> Tensor:
        """Translation probabilities at places of pairs; that of a pair that is none is ``unknown``."""
        return torch.cat([self.translation, self.translation.new_tensor([unknown])]).take(cells.long())

    def null_emission(self, words: Tensor, mask: Tensor, unknown: float) -> Tensor:
        """p(word | NULL), where padded what makes no difference."""
        found = torch.cat([self.null, self.null.new_tensor([unknown])])[words]
        return found.where(mask, 1 / NO_LINK)


def both_posteriors(
    posterior: Infer, directions: tuple[Direction, Direction], batch: Batch, cells: Tensor, unknown: float = 0.0,
    potentials: Tensor | None = None,
) -> tuple[Posterior, Posterior]:  # fmt: skip
    """Posteriors of a batch in both directions; those of the backward one are ``[N, B, M]``.

    ``unknown`` is the probability of a pair of words that has not been seen; ``potentials``, ``[M, B, N]``, multiply
    those of all links.
    """
    found = []
    mask = batch.mask
    turned = ((cells, mask, potentials), (cells.permute(2, 1, 0), mask.permute(2, 1, 0), potentials))
    words, lengths = (batch.target, batch.source), (batch.source_lengths, batch.target_lengths)
    for side, (direction, (places, valid, factor)) in enumerate(zip(directions, turned, strict=True)):
        emission = direction.emission(places, unknown).where(valid, 0.0)
        if factor is not None:
            emission = emission.clamp_min(unknown) * (factor.permute(2, 1, 0) if side else factor)
        null = direction.null_emission(words[side], valid.any(-1), unknown)
        found.append(posterior(emission.contiguous(), null, direction.jumps, lengths[side]))
    return found[0], found[1]


class Text:
    """Sentence pairs to train on: their words, the pairs of these, and batches.

    Args:
        source, target: Words of every sentence.
        known: Pairs of words that the user knows, with their numbers of observations.
    """

    def __init__(self, source: Sentences, target: Sentences, known: Mapping[tuple[str, str], float]) -> None:
        self.vocabularies = (
            Vocabulary.of(source, [word for word, _ in known]), Vocabulary.of(target, [word for _, word in known])
        )  # fmt: skip
        first, second = self.vocabularies
        self.batches = list(batches(self.vocabularies, source, target))
        keys = [first.words[s] * (len(second.words) + 1) + second.words[t] for s, t in known]
        self.pairs = word_pairs(self.batches, len(second.words), np.array(keys, dtype=np.int64))
        self.known = torch.zeros(len(self.pairs.keys))
        self.known[np.searchsorted(self.pairs.keys, keys)] = torch.tensor(list(known.values()), dtype=torch.float32)
        self.cells = [self.pairs.find(batch.source.mT, batch.target[..., None]) for batch in self.batches]
        self.backoff = _Backoff(self.vocabularies, self.pairs)

    def start(self) -> tuple[Direction, Direction]:
        """All pairs of words alike."""
        jumps = torch.full((2 * _REACH + 1,), 1 / (2 * _REACH + 1))
        first, second = (
            Direction(torch.full((len(self.pairs.keys),), 1 / len(words.words)), words.share, jumps)
            for words in self.vocabularies[::-1]
        )
        return first, second

    def iterate(
        self, posterior: Infer, directions: tuple[Direction, Direction], *, agree: bool
    ) -> tuple[tuple[Direction, Direction], float]:
        """One iteration, and the log evidence of both directions, in nats, before it."""
        counts = [_Counts(direction) for direction in directions]
        total = 0.0
        for batch, cells in zip(self.batches, self.cells, strict=True):
            found = both_posteriors(posterior, directions, batch, cells)
            links = [found[0].links, found[1].links.permute(2, 1, 0)]
            if agree:
                links = [links[0] * links[1]] * 2
            for count, part, one, words in zip(counts, links, found, (batch.target, batch.source), strict=True):
                count.add(part, cells, one, words)
                total += one.log_evidence.sum().item()
        first, second = (
            count.maximize(self.backoff.translation(count.pairs[:-1] + self.known, given), words.share)
            for given, (count, words) in enumerate(zip(counts, self.vocabularies[::-1], strict=True))
        )
        return (first, second), total


class _Counts:
    """Expected numbers of a direction's pairs, words without a link, and jumps."""

    def __init__(self, direction: Direction) -> None:
        # one more for pairs and words that are padding
        self.pairs = torch.zeros(len(direction.translation) + 1)
        self.null = torch.zeros(len(direction.null) + 1)
        self.jumps = torch.zeros_like(direction.jumps)

    def add(self, links: Tensor, cells: Tensor, found: Posterior, words: Tensor) -> None:
        self.pairs.index_add_(0, cells.flatten(), links.flatten())
        self.null.index_add_(0, words.flatten(), found.null.flatten())
        self.jumps += found.jumps

    def maximize(self, translation: Tensor, share: Tensor) -> Direction:
        jumps = self.jumps + (_SMOOTHING * self.jumps.sum() + 1e-6) / len(self.jumps)
        null = self.null[:-1] + PRIOR_WEIGHT * share
        return Direction(translation, null / null.sum(), jumps / jumps.sum())


class _Stems:
    """Pairs of stems of one length, of all pairs of words.

    Attributes:
        pair: Number of the pair of stems of every pair of words, ``[P]``.
        stem: Number of the stem of every pair of stems, in the source and in the target.
        count: Number of stems of each.
        share: Share of every word among those of its stem, of the source and of the target.
    """

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs, length: int) -> None:
        numbers = [vocabulary.stems(length) for vocabulary in vocabularies]
        self.count = [int(stem.max()) + 1 for stem in numbers]
        keys, pair = (numbers[0][pairs.source] * self.count[1] + numbers[1][pairs.target]).unique(return_inverse=True)
        self.pair = pair.int()  # there are many
        self.stem = [keys // self.count[1], keys % self.count[1]]
        self.share = [
            vocabulary.share / _sums(vocabulary.share, stem, count)
            for vocabulary, stem, count in zip(vocabularies, numbers, self.count, strict=True)
        ]


class _Backoff:
    """The prior of the translations: what is known of the stems of a pair of words, mean over lengths of stems."""

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs) -> None:
        self.words = [pairs.source, pairs.target]
        self.count = [len(vocabulary.words) for vocabulary in vocabularies]
        self.stems = [_Stems(vocabularies, pairs, length) for length in STEMS]

    def translation(self, counts: Tensor, given: int) -> Tensor:
        """p(told | given) of every pair by its counts; 0 where the source is given, 1 where the target is."""
        smooth, told = counts.clone(), self.words[1 - given]
        for stems in self.stems:
            pairs = torch.zeros(len(stems.stem[given])).index_add_(0, stems.pair, counts)
            pairs /= _sums(pairs, stems.stem[given], stems.count[given])
            smooth.addcmul_(pairs[stems.pair], stems.share[1 - given][told], value=PRIOR_WEIGHT / len(self.stems))
        return smooth / _sums(smooth, self.words[given], self.count[given])


def _sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """The sum of the group of every value."""
    return torch.zeros(count).index_add_(0, groups, values).clamp_min(1e-30)[groups]


def train(text: Text, *, agree: bool, progress: bool = False) -> tuple[Direction, Direction]:
    """Both directions, from source to target and back, trained apart or in agreement."""
    directions = text.start()
    steps = [uniform_posterior] * ITERATIONS[0] + [markov_posterior] * ITERATIONS[1]
    bar = tqdm(steps, desc="in agreement" if agree else "apart", unit="iteration", disable=not progress)
    for posterior in bar:
        directions, total = text.iterate(posterior, directions, agree=agree)
        bar.set_postfix(nats=f"{total:.0f}")
    return directions
