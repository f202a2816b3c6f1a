"""Generated sentence pairs with known links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from experiments.data.text.parallel_text import ParallelText
from pyro_attention.analysis import Alignment

DrawnName = Literal["drawn-jumps", "drawn-order"]
_WORDS, _TRANSLATIONS = 3000, 3  # number of source words, and of translations of each
_SHARE = 0.1  # probability of a target word without a link, and of a dropped or doubled word
_LENGTHS = (4, 20)  # smallest and largest number of source words of a sentence
_JUMPS = {-1: 0.03, 0: 0.2, 1: 0.55, 2: 0.11, 3: 0.04}  # weights of jumps, about as an aligner learns from the Hansards
_FAR = 0.01  # weight of every other jump
_TEST = 1000  # test pairs
Sources = list[int]  # source word of every target word, -1 for none


def drawn_text(name: DrawnName, pairs: int) -> tuple[ParallelText, ParallelText]:
    """Draw training pairs and test pairs.

    Words follow Zipf's law. Every source word has three translations, whose probabilities are drawn from Dirichlet(1).
    A target word without a source word is drawn by the frequencies of the words.

    Args:
        name: ``drawn-jumps`` has jumps from one source word to the next by a hidden Markov model, and a tenth of the
            target words have no source word. ``drawn-order`` has the source words in their order, up to a shift by one
            position; a tenth of them each is dropped, has two target words, or is followed by a target word without a
            source word.
        pairs: Number of training pairs.

    Returns:
        The training text, and a test text of 1000 pairs.
    """
    random = np.random.default_rng(0)
    frequencies = (1 / np.arange(1, _WORDS + 1)).cumsum()
    frequencies /= frequencies[-1]
    translations = random.permuted(np.tile(np.arange(_WORDS), (_TRANSLATIONS, 1)), axis=1).T
    probabilities = random.dirichlet(np.ones(_TRANSLATIONS), _WORDS).cumsum(1)
    align: Callable[[np.random.Generator, int], Sources] = _draw_jumps if name == "drawn-jumps" else _draw_order
    sides, links = (list[str](), list[str]()), list[Alignment]()
    for _ in range(pairs + _TEST):
        source: list[int] = frequencies.searchsorted(random.random(random.integers(*_LENGTHS, endpoint=True))).tolist()
        sources = align(random, len(source))
        target = list[int]()
        for word in (source[i] if i >= 0 else -1 for i in sources):
            uniform = random.random()
            number = min(probabilities[word].searchsorted(uniform), _TRANSLATIONS - 1)
            target.append(int(frequencies.searchsorted(uniform) if word < 0 else translations[word, number]))
        for side, words, letter in zip(sides, (source, target), "st", strict=True):
            side.append(" ".join(f"{letter}{word}" for word in words))
        linked = frozenset((i, j) for j, i in enumerate(sources) if i >= 0)
        links.append(Alignment(linked, len(source), len(target)))
    text = ParallelText(*sides, name, ("source", "target"), links)
    return text.first(pairs), text.chosen(range(pairs, pairs + _TEST))


def _draw_jumps(random: np.random.Generator, num_source: int) -> Sources:
    """Draw source words by a hidden Markov model of jumps."""
    last, sources = -1, Sources()
    for _ in range(max(1, num_source + int(random.integers(-2, 2, endpoint=True)))):
        if random.random() < _SHARE:
            sources.append(-1)
            continue
        weights = np.array([_JUMPS.get(i - last, _FAR) for i in range(num_source)]).cumsum()
        last = int(weights.searchsorted(random.random() * weights[-1]))
        sources.append(last)
    return sources


def _draw_order(random: np.random.Generator, num_source: int) -> Sources:
    """Draw source words near their order, some of them dropped, doubled, or followed by a word without a link."""
    sources = Sources()
    for i in np.argsort(np.arange(num_source) + random.uniform(0, 2, num_source)):
        dropped, doubled, added = random.random(3) < _SHARE
        sources += [int(i)] * (int(not dropped) * (1 + int(doubled))) + [-1] * int(added)
    return sources or [-1]
