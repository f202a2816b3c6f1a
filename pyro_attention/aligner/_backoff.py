"""The prior of the translations of an aligner: what is known of the first letters of both words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_attention.aligner._corpus import Vocabulary, WordPairs

__all__ = ["Backoff"]

_STEMS = (1, 2, 3, 4, 6)  # letters; of those tried the text is most probable with them


class _Stems:
    """Pairs of stems of one length.

    Attributes:
        pair: Number of the pair of stems of every pair of longer ones, or of words.
        stem: Number of the stem of every pair of stems, in the source and in the target.
        share: Share of every stem among all words, of the source and of the target.
    """

    def __init__(self, numbers: Sequence[Tensor], vocabularies: Sequence[Vocabulary], pairs: Sequence[Tensor]) -> None:
        counts = [int(number.max()) + 1 for number in numbers]
        keys, pair = (pairs[0].long() * counts[1] + pairs[1]).unique(return_inverse=True)
        self.pair = pair.int()  # there are many
        self.stem = [(keys // counts[1]).int(), (keys % counts[1]).int()]
        self.share = [
            torch.zeros(count).index_add_(0, number, vocabulary.share).clamp_min(1e-30)
            for count, number, vocabulary in zip(counts, numbers, vocabularies, strict=True)
        ]


class Backoff:
    r"""Mean of the translations of a model under their prior, by the expected numbers of links.

    The prior of p(t | s) has the mean :math:`\pi(t \mid s)` of :mod:`pyro_attention.aligner._training`, on average over
    stems of several lengths.

    Args:
        vocabularies: Words of the source and of the target.
        pairs: The pairs of words of the text.
        weight: Number of observations that the prior of a word counts as.
    """

    def __init__(self, vocabularies: tuple[Vocabulary, Vocabulary], pairs: WordPairs, weight: float) -> None:
        self.weight = weight
        self.words = [pairs.source.int(), pairs.target.int()]
        self.share = [vocabulary.share for vocabulary in vocabularies]
        self.levels: list[_Stems] = []
        above, finer = self.words, [torch.arange(len(words.words)) for words in vocabularies]
        for length in sorted(_STEMS, reverse=True):
            numbers = [vocabulary.stems(length) for vocabulary in vocabularies]
            # the shorter stem of a longer one, or of a word
            parent = [
                torch.zeros(int(old.max()) + 1, dtype=torch.int64).index_copy_(0, old, new)
                for old, new in zip(finer, numbers, strict=True)
            ]
            stems = _Stems(numbers, vocabularies, [part[words] for part, words in zip(parent, above, strict=True)])
            self.levels.append(stems)
            above, finer = stems.stem, numbers

    def totals(self, counts: Tensor) -> list[Tensor]:
        """Return the counts of the pairs of words, and of those of ever shorter stems."""
        totals = [counts]
        for level in self.levels:
            totals.append(torch.zeros(len(level.stem[0])).index_add_(0, level.pair, totals[-1]))
        return totals

    def translation(self, totals: Sequence[Tensor], given: int) -> Tensor:
        """Return p(word | given word) of every pair by its counts, given the source (0) or the target (1)."""
        side, prior = 1 - given, torch.zeros(())
        for level, total in zip(self.levels[::-1], totals[:0:-1], strict=True):
            ratio = total / _sums(total, level.stem[given], len(level.share[given]))
            ratio = ratio.div_(level.share[side].index_select(0, level.stem[side])).add_(prior)
            prior = ratio.index_select(0, level.pair)
        prior.mul_(self.share[side].index_select(0, self.words[side]))
        smooth = prior.mul_(self.weight / len(self.levels)).add_(totals[0])
        return smooth.div_(_sums(smooth, self.words[given], len(self.share[given])))


def _sums(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return the sum of the group of every value."""
    return torch.zeros(count).index_add_(0, groups, values).clamp_min(1e-30).index_select(0, groups)
