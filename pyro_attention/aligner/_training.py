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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pyro_attention.aligner._corpus import Batch, Cells, Sentences, Vocabulary, WordPairs, batches, word_pairs
from pyro_attention.aligner._moves import NO_LINK
from pyro_attention.aligner.hmm import Posterior, markov_posterior, uniform_posterior

__all__ = ["ITERATIONS", "Both", "Direction", "Text", "both_posteriors", "train"]

Infer = Callable[[Tensor, Tensor, Tensor, Tensor], Posterior]
ITERATIONS = (5, 5)  # of the model without jumps, and of the one with them
_MUCH, _MORE = 50_000, 3  # pairs of which held-out text is more probable after so many iterations more
PRIOR_WEIGHT = 1.0
STEMS = (1, 2, 3, 4, 6)  # letters; of those tried the text is most probable with them
_REACH = 60  # words; longer jumps are as probable as this one
_LEAST = 1e-6  # p(word | word) that an encoder or a known link may still outweigh
_COUNTED = 25  # batches at least, which tell of the jumps, as these are few
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

    def tables(self, unknown: float) -> tuple[Tensor, Tensor]:
        """Probabilities of pairs and of words without a link; after them those of padding and of what is unknown."""
        pairs = torch.cat([self.translation, self.translation.new_tensor([0.0, unknown])])
        return pairs, torch.cat([self.null, self.null.new_tensor([1 / NO_LINK, unknown])])


def both_posteriors(
    posterior: Infer, directions: Both, tables: Sequence[tuple[Tensor, Tensor]], batch: Batch, cells: Cells,
    potentials: Tensor | None = None,
) -> tuple[Posterior, Posterior]:  # fmt: skip
    """Posteriors of a batch in both directions; those of the backward one are ``[N, M, B]``.

    Args:
        posterior: With the prior of jumps or without.
        directions: The model.
        tables: Their :meth:`Direction.tables`.
        batch: Sentence pairs.
        cells: Their pairs of words.
        potentials: What the probabilities of links are multiplied by, ``[M, N, B]``; 0 at padded places.
    """
    found = []
    words, lengths = (batch.target, batch.source), (batch.source_lengths, batch.target_lengths)
    for side, (direction, (pairs, nulls)) in enumerate(zip(directions, tables, strict=True)):
        emission = cells.gather(pairs)
        if potentials is not None:
            emission = emission.clamp_min(_LEAST) * potentials
        if side:
            emission = emission.transpose(0, 1)
        none = nulls.index_select(0, words[side].flatten()).view(words[side].shape)
        found.append(posterior(emission, none, direction.jumps, lengths[side]))
    return found[0], found[1]


Both = tuple[Direction, Direction]


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
        keys = [first.words[s] * (len(second.words) + 2) + second.words[t] for s, t in known]
        sizes = len(first.words), len(second.words)
        self.pairs, self.cells = word_pairs(self.batches, sizes, np.array(keys, dtype=np.int64))
        self.known = torch.zeros(len(self.pairs.keys))
        self.known[np.searchsorted(self.pairs.keys, keys)] = torch.tensor(list(known.values()), dtype=torch.float32)
        self.backoff = _Backoff(self.vocabularies, self.pairs)

    def start(self) -> Both:
        """All pairs of words alike."""
        jumps = torch.full((2 * _REACH + 1,), 1 / (2 * _REACH + 1))
        first, second = (
            Direction(torch.full((len(self.pairs.keys),), 1 / len(words.words)), words.share, jumps)
            for words in self.vocabularies[::-1]
        )
        return first, second

    def iterate(self, directions: Both, *, markov: bool, agree: bool) -> Both:
        """One iteration, with the prior of jumps or without."""
        tables = [direction.tables(0.0) for direction in directions]
        counts = [_Counts(*table, direction.jumps) for table, direction in zip(tables, directions, strict=True)]
        some = max(1, len(self.batches) // _COUNTED)
        for number, (batch, cells) in enumerate(zip(self.batches, self.cells, strict=True)):
            infer = partial(markov_posterior, count_jumps=number % some == 0) if markov else uniform_posterior
            found = both_posteriors(infer, directions, tables, batch, cells)
            links = [found[0].links, found[1].links.transpose(0, 1)]
            if agree:
                links = [links[0].mul_(links[1])]
            for count, part in zip(counts, links, strict=False):  # in agreement both have the same
                cells.add_to(count.pairs, part)
            for count, one, words in zip(counts, found, (batch.target, batch.source), strict=True):
                count.null.index_add_(0, words.flatten(), one.null.flatten())
                count.jumps += one.jumps
        totals = [self.backoff.totals(count.pairs[:-2] + self.known) for count in counts[: 2 - agree]]
        first, second = (
            count.maximize(self.backoff.translation(totals[given % len(totals)], given), words.share)
            for given, (count, words) in enumerate(zip(counts, self.vocabularies[::-1], strict=True))
        )
        return first, second


class _Counts:
    """Expected numbers of a direction's pairs, words without a link, and jumps; padding among them."""

    def __init__(self, pairs: Tensor, null: Tensor, jumps: Tensor) -> None:
        self.pairs, self.null, self.jumps = (torch.zeros_like(one) for one in (pairs, null, jumps))

    def maximize(self, translation: Tensor, share: Tensor) -> Direction:
        jumps = self.jumps + (_SMOOTHING * self.jumps.sum() + 1e-6) / len(self.jumps)
        null = self.null[:-2] + PRIOR_WEIGHT * share
        return Direction(translation, null / null.sum(), jumps / jumps.sum())


class _Stems:
    """Pairs of stems of one length.

    Attributes:
        pair: Number of the pair of stems of every pair of longer ones, or of words.
        stem: Number of the stem of every pair of stems, in the source and in the target.
        share: Share of every stem among all words, of the source and of the target.
    """

    def __init__(self, numbers: Sequence[Tensor], vocabularies: Sequence[Vocabulary], pairs: Sequence[Tensor]) -> None:
        counts = [int(number.max()) + 1 for number in numbers]
        keys, pair = (pairs[0] * counts[1] + pairs[1]).unique(return_inverse=True)
        self.pair = pair.int()  # there are many
        self.stem = [keys // counts[1], keys % counts[1]]
        self.share = [
            torch.zeros(count).index_add_(0, number, vocabulary.share).clamp_min(1e-30)
            for count, number, vocabulary in zip(counts, numbers, vocabularies, strict=True)
        ]


class _Backoff:
    """The prior of the translations: what is known of the stems of a pair of words, mean over lengths of stems."""

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs) -> None:
        self.words = [pairs.source.int(), pairs.target.int()]
        self.share = [vocabulary.share for vocabulary in vocabularies]
        self.levels: list[_Stems] = []
        above, finer = [pairs.source, pairs.target], [torch.arange(len(words.words)) for words in vocabularies]
        for length in sorted(STEMS, reverse=True):
            numbers = [vocabulary.stems(length) for vocabulary in vocabularies]
            # the shorter stem of a longer one, or of a word
            parent = [
                torch.zeros(int(old.max()) + 1, dtype=torch.int64).index_copy_(0, old, new)
                for old, new in zip(finer, numbers, strict=True)
            ]
            stems = _Stems(numbers, vocabularies, [part[one] for part, one in zip(parent, above, strict=True)])
            self.levels.append(stems)
            above, finer = stems.stem, numbers

    def totals(self, counts: Tensor) -> list[Tensor]:
        """Counts of the pairs of words, and of those of ever shorter stems."""
        totals = [counts]
        for level in self.levels:
            totals.append(torch.zeros(len(level.stem[0])).index_add_(0, level.pair, totals[-1]))
        return totals

    def translation(self, totals: list[Tensor], given: int) -> Tensor:
        """p(told | given) of every pair by its counts; 0 where the source is given, 1 where the target is."""
        told, prior = 1 - given, torch.zeros(())
        for level, total in zip(self.levels[::-1], totals[:0:-1], strict=True):
            own = total / _sums(total, level.stem[given], len(level.share[given]))
            own = own.div_(level.share[told].index_select(0, level.stem[told])).add_(prior)
            prior = own.index_select(0, level.pair)
        weight = PRIOR_WEIGHT / len(self.levels)
        smooth = torch.addcmul(totals[0], prior, self.share[told].index_select(0, self.words[told]), value=weight)
        return smooth.div_(_sums(smooth, self.words[given], len(self.share[given])))


def _sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """The sum of the group of every value."""
    return torch.zeros(count).index_add_(0, groups, values).clamp_min(1e-30).index_select(0, groups)


def train(text: Text, *, agree: bool, stop: Event, progress: bool = False) -> Both:
    """Both directions, from source to target and back, trained apart or in agreement, unless somebody says stop."""
    directions = text.start()
    more = _MORE if sum(len(batch.rows) for batch in text.batches) >= _MUCH else 0
    steps = [False] * ITERATIONS[0] + [True] * (ITERATIONS[1] + more)
    name = "in agreement" if agree else "apart"
    for markov in tqdm(steps, desc=name, unit="iteration", position=int(agree), disable=not progress):
        if stop.is_set():
            break
        directions = text.iterate(directions, markov=markov, agree=agree)
    return directions
