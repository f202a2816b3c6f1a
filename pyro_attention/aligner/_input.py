"""Checks of the sentence pairs and of the known links that an aligner is given, before any work is done."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from pyro_attention.aligner._corpus import Sentences

__all__ = ["Anchors", "ComposedPairs", "check_anchors", "check_lengths", "check_sides", "composed", "nfc"]

_MOST_LINKS = 10_000_000  # possible ones of a pair, each of which takes some hundred bytes
Anchors = Sequence[Sequence[tuple[int, int]]]


def check_sides(source: Sentences, target: Sentences) -> None:
    """Raise TypeError where sentences are texts instead of words, ValueError where there are more of one side."""
    for name, side in (("source", source), ("target", target)):
        if wrong := side if isinstance(side, str) else next((line for line in side if isinstance(line, str)), None):
            raise TypeError(f"{name} has the text {wrong[:40]!r}, expected its words: line.split()")
    if len(source) != len(target):
        raise ValueError(
            f"source has {len(source)} sentences and target {len(target)}; expected as many, the translation of every "
            f"sentence at the same place"
        )


def check_lengths(source: Sentences, target: Sentences, *, name: str = "pair", first: int = 0) -> None:
    """Raise ValueError where the possible links of a pair would not fit into memory.

    Args:
        source: Words of every sentence.
        target: Those of the translations.
        name: What a pair is called.
        first: Number of the first pair.
    """
    for number, (s, t) in enumerate(zip(source, target, strict=True), first):
        if len(s) * len(t) > _MOST_LINKS:
            raise ValueError(
                f"{name} {number} has {len(s)} source and {len(t)} target words, and so {len(s) * len(t)} possible "
                f"links; expected {_MOST_LINKS} at most: divide it into sentences, or leave it out"
            )


def check_anchors(
    source: Sentences, target: Sentences, anchors: Anchors, *, name: str = "anchors of pair", first: int = 0
) -> None:
    """Raise ValueError where a known link lies outside of its sentences; see :func:`check_lengths`."""
    for number, (s, t, links) in enumerate(zip(source, target, anchors, strict=True), first):
        for i, j in links:
            if not (0 <= i < len(s) and 0 <= j < len(t)):
                raise ValueError(
                    f"{name} {number}: link {i}-{j} lies outside of {len(s)} source and {len(t)} target "
                    f"words; expected words counted from 0"
                )


def composed(sentences: Sentences) -> list[list[str]]:
    """Return words in Unicode's composed form (NFC), in which they are compared."""
    return [
        list(sentence) if "".join(sentence).isascii() else [nfc(word) for word in sentence] for sentence in sentences
    ]


class ComposedPairs:
    """Sentence pairs that are read again and again, with words in the composed form; they are checked on the way.

    Args:
        pairs: Source and target words of every sentence pair.
    """

    def __init__(self, pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> None:
        if iter(pairs) is pairs:
            raise TypeError("pairs can be read once, expected a list, or an object that iterates anew each time")
        self._pairs = pairs

    def __iter__(self) -> Iterator[tuple[list[str], list[str]]]:
        for number, (source, target) in enumerate(self._pairs):
            check_sides([source], [target])
            check_lengths([source], [target], first=number)
            first, second = composed([source, target])
            yield first, second


def nfc(word: str) -> str:
    """Return a word in Unicode's composed form."""
    return word if word.isascii() else unicodedata.normalize("NFC", word)
