"""Sentence pairs that are drawn, whose links are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from experiments.data.text.parallel_text import ParallelText
from pyro_attention.analysis import Alignment

DrawnName = Literal["drawn-jumps", "drawn-order"]
_WORDS, _TRANSLATIONS, _SHARE = 3000, 3, 0.1  # share: of words without a link, and others
_LENGTHS = (4, 20)
_JUMPS = {-1: 0.03, 0: 0.2, 1: 0.55, 2: 0.11, 3: 0.04}  # about those that an aligner learns of the Hansards
_FAR = 0.01  # of every other jump
_TEST = 1000  # pairs to test on
Sources = list[int]  # of every target word its source word, -1 without one


def drawn_text(name: DrawnName, pairs: int) -> tuple[ParallelText, ParallelText]:
    """Draw pairs to train on, and pairs to test on.

    Words follow Zipf's law. Every source word has three translations, whose probabilities are drawn from Dirichlet(1);
    a target word without a source word is drawn by the frequencies of the words. Of ``drawn-jumps`` a tenth of the
    target words have no source word, and jumps from one source word to the next are those of a hidden Markov model. In
    ``drawn-order`` the source words come one after the other, up to one place away from their order; a tenth each is
    left out, has two target words, or has a target word without a source word behind it.
    """
    random = np.random.default_rng(0)
    share = (1 / np.arange(1, _WORDS + 1)).cumsum()
    share /= share[-1]
    translations = random.permuted(np.tile(np.arange(_WORDS), (_TRANSLATIONS, 1)), axis=1).T
    chances = random.dirichlet(np.ones(_TRANSLATIONS), _WORDS).cumsum(1)
    align: Callable[[np.random.Generator, int], Sources] = _jumps if name == "drawn-jumps" else _order
    sides, links = (list[str](), list[str]()), list[Alignment]()
    for _ in range(pairs + _TEST):
        source: list[int] = share.searchsorted(random.random(random.integers(*_LENGTHS, endpoint=True))).tolist()
        sources = align(random, len(source))
        target = list[int]()
        for word in (source[i] if i >= 0 else -1 for i in sources):
            drawn = random.random()
            chosen = min(chances[word].searchsorted(drawn), _TRANSLATIONS - 1)
            target.append(int(share.searchsorted(drawn) if word < 0 else translations[word, chosen]))
        for side, words, letter in zip(sides, (source, target), "st", strict=True):
            side.append(" ".join(f"{letter}{word}" for word in words))
        linked = frozenset((i, j) for j, i in enumerate(sources) if i >= 0)
        links.append(Alignment(linked, len(source), len(target)))
    text = ParallelText(*sides, name, ("source", "target"), links)
    return text.first(pairs), text.chosen(range(pairs, pairs + _TEST))


def _jumps(random: np.random.Generator, num_source: int) -> Sources:
    last, sources = -1, Sources()
    for _ in range(max(1, num_source + int(random.integers(-2, 2, endpoint=True)))):
        if random.random() < _SHARE:
            sources.append(-1)
            continue
        weights = np.array([_JUMPS.get(i - last, _FAR) for i in range(num_source)]).cumsum()
        last = int(weights.searchsorted(random.random() * weights[-1]))
        sources.append(last)
    return sources


def _order(random: np.random.Generator, num_source: int) -> Sources:
    sources = Sources()
    for i in np.argsort(np.arange(num_source) + random.uniform(0, 2, num_source)):
        dropped, doubled, added = random.random(3) < _SHARE
        sources += [int(i)] * (int(not dropped) * (1 + int(doubled))) + [-1] * int(added)
    return sources or [-1]
