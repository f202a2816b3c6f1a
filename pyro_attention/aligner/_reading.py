"""Reading of what an aligner is given: two files or one, standard input, dictionaries and known links."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyro_attention.aligner._input import Anchors, check_anchors, check_lengths, composed
from pyro_attention.aligner.aligner import Aligner
from pyro_attention.aligner.text import Preparation, lacks_blanks
from pyro_attention.analysis.alignments.links import read_pharaoh
from pyro_attention.text_lines import decode_lines, read_lines

__all__ = ["SentencePairs", "check_languages", "read_anchors", "read_dictionary", "read_pairs", "warn"]

STANDARD = Path("-")
BETWEEN = " ||| "  # the sides of a pair in one file
_ENTRY = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d+\.?\d*))?")  # of a dictionary
_OBSERVATIONS = 10.0  # that an entry counts as
_MOST = 1e12  # observations that an entry may count as


@dataclass(frozen=True)
class SentencePairs:
    """Sentences and their translations.

    Attributes:
        names: What the files are called.
        written: Words of every sentence as they are written, of the source and of the target.
        compared: The same as they are compared.
    """

    names: tuple[str, str]
    written: tuple[list[list[str]], list[list[str]]]
    compared: tuple[list[list[str]], list[list[str]]]

    def __len__(self) -> int:
        return len(self.written[0])


def read_pairs(
    source: Path, target: Path | None, preparation: Preparation, *, documents: bool = False
) -> SentencePairs:
    """Read two files of as many lines, or one whose lines hold both sides, ``source ||| target``.

    Args:
        source: A file, or standard input where it is ``-``.
        target: Another one.
        preparation: What becomes of a line.
        documents: Lines up to an empty one are one text, and so is its translation, of more lines or fewer.

    Raises:
        OSError: A file cannot be read.
        ValueError: Different numbers of lines, a line without both sides, one that is not UTF-8, or a pair whose links
            would not fit into memory.
    """
    if target is None:
        if documents:
            raise ValueError("--documents reads two files, expected the file of the translations, too")
        sides = _both_sides(source)
        names = (str(source), str(source))
    else:
        if source == target == STANDARD:
            raise ValueError("both files are standard input, expected one of them at most; or one file with ' ||| '")
        sides = [line for _, line in _lines(source)], [line for _, line in _lines(target)]
        names = (str(source), str(target))
    if documents:
        sides = _documents(sides[0]), _documents(sides[1])
    if len(sides[0]) != len(sides[1]):
        if documents:
            raise ValueError(
                f"{names[0]} has {len(sides[0])} documents and {names[1]} {len(sides[1])}; expected as many, with an "
                f"empty line between them"
            )
        raise ValueError(
            f"{names[0]} has {len(sides[0])} lines and {names[1]} {len(sides[1])}; expected as many, each sentence and "
            f"its translation at the same line"
        )
    first, second = ([preparation.words(line) for line in side] for side in sides)
    check_lengths(first, second, name=f"{' and '.join(dict.fromkeys(names))}, line", first=1)
    for name, side in zip(names, (first, second), strict=True):
        if not preparation.tokenize and lacks_blanks(side):
            warn(
                f"{name} seems to have no blanks between words. --tokenize takes every sign of Chinese and Japanese as "
                f"a word; for Thai, Lao, Khmer and Burmese divide the text into words first"
            )
    compared = [[preparation.compared(words) for words in side] for side in (first, second)]
    return SentencePairs(names, (first, second), (compared[0], compared[1]))


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    if path == STANDARD:
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    return read_lines(path)


def _documents(lines: list[str]) -> list[str]:
    """Lines that follow each other, as one; empty lines stand between."""
    texts: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            texts[-1].append(line)
        elif texts[-1]:
            texts.append([])
    return [" ".join(text) for text in texts if text]


def _both_sides(path: Path) -> tuple[list[str], list[str]]:
    sides: tuple[list[str], list[str]] = ([], [])
    for place, line in _lines(path):
        parts = f" {line} ".split(BETWEEN)
        if len(parts) != 2:
            raise ValueError(f"{place} is {line[:80]!r}, expected a sentence, ' ||| ' and its translation")
        for side, part in zip(sides, parts, strict=True):
            side.append(part)
    return sides


def read_dictionary(path: Path, preparation: Preparation, text: SentencePairs) -> dict[tuple[str, str], float]:
    """Read word pairs that are known, and say how many of them the text has.

    The words of an entry are prepared as the text is. An entry of several words tells of each of its pairs of words, of
    which the words of the longer side have one each.

    Args:
        path: A file with source, target and perhaps a number of observations in a line, with tabs between.
        preparation: That of the text.
        text: What the aligner is trained on.

    Raises:
        ValueError: A line is no entry, or the text has no word pair of the whole dictionary.
    """
    known: dict[tuple[str, str], float] = {}
    vocabularies = [{word for words in composed(side) for word in words} for side in text.compared]
    entries = matched = 0
    for place, line in read_lines(path):
        if not line.strip():
            continue
        entry = _ENTRY.fullmatch(line.strip())
        count = float(entry[3] or _OBSERVATIONS) if entry else 0.0
        sides = [preparation.compared(preparation.words(entry[side])) for side in (1, 2)] if entry else [[], []]
        if not all(sides) or count > _MOST:
            columns = f"source, target and perhaps a number of observations up to {_MOST:g}, with tabs between"
            raise ValueError(f"{place} is {line[:80]!r}, expected {columns}")
        entries += 1
        matched += all(
            word in vocabulary for side, vocabulary in zip(composed(sides), vocabularies, strict=True) for word in side
        )
        for s in sides[0]:
            for t in sides[1]:
                known[s, t] = known.get((s, t), 0.0) + count / max(map(len, sides))
    if entries and not matched:
        raise ValueError(f"{path} has {entries} entries, and the text has the words of none of them")
    warn(f"{path}: the text has the words of {matched} of {entries} entries")
    return known


def read_anchors(path: Path, text: SentencePairs) -> Anchors:
    """Read known links, a line for every pair of the text; ValueError where they do not fit."""
    anchors = [sorted(gold.sure) for gold in read_pharaoh(path).values()]
    if len(anchors) != len(text):
        raise ValueError(f"{path} has {len(anchors)} lines, {text.names[0]} {len(text)}; expected as many")
    check_anchors(*text.written, anchors, name=f"{path}, line", first=1)
    return anchors


def check_languages(aligner: Aligner, text: SentencePairs) -> None:
    """Raise ValueError where each side has more words of the other language of the training text than of its own."""
    words: Sequence[list[str]] = [[word for line in side for word in line] for side in text.compared]
    counts = [[aligner.knows(side, language) for language in (0, 1)] for side in words]
    if counts[0][1] > counts[0][0] and counts[1][0] > counts[1][1]:
        raise ValueError(
            f"{text.names[0]} has the words of the target that the aligner was trained on, and {text.names[1]} those "
            f"of the source; swap the two files"
        )


def warn(message: str) -> None:
    """Say something on standard error."""
    print(f"pyro-align: {message}", file=sys.stderr)
