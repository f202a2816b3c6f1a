"""Reading of what an aligner is given: two files or one, standard input, dictionaries and known links."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path

from pyro_attention.aligner._input import Anchors, check_anchors, check_lengths, composed
from pyro_attention.aligner.aligner import Aligner
from pyro_attention.aligner.text import Preparation, is_one_word, lacks_blanks
from pyro_attention.analysis.alignments.links import read_pharaoh
from pyro_attention.text_lines import check_characters, decode_lines, read_lines

__all__ = [
    "SentencePairs",
    "TextFiles",
    "check_languages",
    "is_jsonl",
    "read_anchors",
    "read_dictionary",
    "read_pairs",
    "warn",
]

STANDARD = Path("-")
BETWEEN = " ||| "  # the sides of a pair in one file
_ENTRY = re.compile(r"([^\t]+)\t([^\t]+)(?:\t(\d+\.?\d*))?")  # of a dictionary
_OBSERVATIONS = 10.0  # that an entry counts as
_FIRST = 5000  # pairs that tell which languages a text is of, and whether its words are divided
_MOST = 1e12  # observations that an entry may count as


@dataclass(frozen=True)
class SentencePairs:
    """Sentences and their translations, in memory.

    Attributes:
        names: What the files are called.
        written: Words of every sentence as they are written, of the source and of the target.
        compared: Words as they are compared.
    """

    names: tuple[str, str]
    written: tuple[list[list[str]], list[list[str]]]
    compared: tuple[list[list[str]], list[list[str]]]

    def __len__(self) -> int:
        return len(self.written[0])

    def __iter__(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the words of every pair as they are compared."""
        return zip(*self.compared, strict=True)


@dataclass(frozen=True)
class TextFiles:
    """Sentences and their translations in files, which are read again each time, so that they may be of any size.

    Attributes:
        source: File of the sentences, or of both sides.
        target: File of the translations.
        preparation: What becomes of a line.
    """

    source: Path
    target: Path | None
    preparation: Preparation

    @property
    def names(self) -> tuple[str, str]:
        """Names of both files."""
        return str(self.source), str(self.source if self.target is None else self.target)

    def written(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the words of every pair as they are written."""
        for source, target in _line_pairs(self.source, self.target):
            yield self.preparation.words(source), self.preparation.words(target)

    def __iter__(self) -> Iterator[tuple[list[str], list[str]]]:
        """Yield the words of every pair as they are compared."""
        for source, target in self.written():
            yield self.preparation.compared(source), self.preparation.compared(target)

    def check(self) -> None:
        """Raise ValueError unless both files have as many lines, in UTF-8, whose links fit into memory."""
        name = f"{' and '.join(dict.fromkeys(self.names))}, line"
        for number, (source, target) in enumerate(self.written(), 1):
            check_lengths([source], [target], name=name, first=number)
        if not self.preparation.tokenize:
            first = list(islice(self.written(), _FIRST))
            for number, file in enumerate(self.names):
                _warn_of_blanks(file, [pair[number] for pair in first])


def read_pairs(
    source: Path, target: Path | None, preparation: Preparation, *, documents: bool = False
) -> SentencePairs:
    """Read two files of as many lines, or one whose lines hold both sides, ``source ||| target`` or JSON.

    Args:
        source: A file, or standard input where it is ``-``.
        target: File of the translations, or standard input.
        preparation: What becomes of a line.
        documents: Lines up to an empty one are one text, and so is its translation, of more lines or fewer.

    Raises:
        OSError: A file cannot be read.
        ValueError: Different numbers of lines, a line without both sides, one that is not UTF-8, or a pair whose links
            would not fit into memory.
    """
    names = (str(source), str(source if target is None else target))
    if documents:
        if target is None:
            raise ValueError("--documents reads two files, expected the file of the translations, too")
        _check_standard(source, target)
        sides = [_documents(line for _, line in _lines(path)) for path in (source, target)]
        if len(sides[0]) != len(sides[1]):
            raise ValueError(
                f"{names[0]} has {len(sides[0])} documents and {names[1]} {len(sides[1])}; expected as many, with an "
                f"empty line between them"
            )
    else:
        pairs = list(_line_pairs(source, target))
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    first, second = ([preparation.words(line) for line in side] for side in sides)
    counted = "document" if documents else "line"
    check_lengths(first, second, name=f"{' and '.join(dict.fromkeys(names))}, {counted}", first=1)
    for name, side in zip(names, (first, second), strict=True):
        if not preparation.tokenize:
            _warn_of_blanks(name, side)
    compared = [[preparation.compared(words) for words in side] for side in (first, second)]
    return SentencePairs(names, (first, second), (compared[0], compared[1]))


def _warn_of_blanks(name: str, sentences: Sequence[Sequence[str]]) -> None:
    if lacks_blanks(sentences):
        warn(
            f"{name} seems to have no blanks between words. --tokenize takes every sign of Chinese and Japanese as "
            f"a word; for Thai, Lao, Khmer and Burmese divide the text into words first"
        )


def _check_standard(source: Path, target: Path | None) -> None:
    if source == target == STANDARD:
        raise ValueError("both files are standard input, expected one of them at most; or one file with ' ||| '")


def _line_pairs(source: Path, target: Path | None) -> Iterator[tuple[str, str]]:
    """Yield both sides of every line, line by line."""
    if target is None:
        split = _json_sides if is_jsonl(source) else _divided
        for location, line in _lines(source):
            yield split(location, line)
        return
    _check_standard(source, target)
    counts = [0, 0]
    for first, second in zip_longest(_lines(source), _lines(target)):
        counts = [count + (line is not None) for count, line in zip(counts, (first, second), strict=True)]
        if counts[0] == counts[1]:
            yield first[1], second[1]
    if counts[0] != counts[1]:
        raise ValueError(
            f"{source} has {counts[0]} lines and {target} {counts[1]}; expected as many, each sentence and its "
            f"translation at the same line"
        )


def is_jsonl(path: Path) -> bool:
    """Return whether the lines of a file are JSON, by its name."""
    return path.name.removesuffix(".gz").endswith(".jsonl")


def _divided(location: str, line: str) -> tuple[str, str]:
    parts = f" {line} ".split(BETWEEN)
    if len(parts) != 2:
        raise ValueError(f"{location} is {line[:80]!r}, expected a sentence, ' ||| ' and its translation")
    return parts[0], parts[1]


def _json_sides(location: str, line: str) -> tuple[str, str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # the second of thousands of brackets
        record = None
    sides = [record.get(side) for side in ("source", "target")] if isinstance(record, dict) else [None]
    texts = []
    for side in sides:
        if isinstance(side, list) and all(isinstance(word, str) for word in side):
            if wrong := [word for word in side if not is_one_word(word)]:
                raise ValueError(
                    f"{location} has the word {wrong[0][:40]!r} in a list, expected words without blanks, as links "
                    f"count them; leave an empty one out, or give the text itself in place of the list"
                )
            side = " ".join(side)
        if not isinstance(side, str):
            example = '{"source": "das Haus", "target": ["the", "house"]}'
            raise ValueError(
                f"{location} is {line[:80]!r}, expected JSON with a source and a target, such as {example}"
            )
        try:
            check_characters(side)
        except ValueError as error:
            raise ValueError(f"{location}: {error}") from None
        texts.append(side.replace("\n", " "))
    return texts[0], texts[1]


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    if path == STANDARD:
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    return read_lines(path)


def _documents(lines: Iterable[str]) -> list[str]:
    """Return lines that follow each other as one; empty lines stand between."""
    texts: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            texts[-1].append(line)
        elif texts[-1]:
            texts.append([])
    return [" ".join(text) for text in texts if text]


def read_dictionary(
    path: Path, preparation: Preparation, text: SentencePairs | TextFiles
) -> dict[tuple[str, str], float]:
    """Read word pairs that are known, and say how many of them the text has.

    The words of an entry are prepared as the text is. An entry of several words tells of each of its pairs of words, of
    which the words of the longer side have one each.

    Args:
        path: A file with source, target and perhaps a number of observations in a line, with tabs between.
        preparation: Preparation of the text.
        text: What the aligner is trained on.

    Raises:
        ValueError: A line is no entry, or the text has no word pair of the whole dictionary.
    """
    known: dict[tuple[str, str], float] = {}
    vocabularies: tuple[set[str], set[str]] = (set(), set())
    for pair in text:
        for vocabulary, words in zip(vocabularies, composed(pair), strict=True):
            vocabulary.update(words)
    entries = matched = 0
    for location, line in read_lines(path):
        if not line.strip():
            continue
        entry = _ENTRY.fullmatch(line.strip())
        count = float(entry[3] or _OBSERVATIONS) if entry else 0.0
        sides = [preparation.compared(preparation.words(entry[side])) for side in (1, 2)] if entry else [[], []]
        if not all(sides) or count > _MOST:
            columns = f"source, target and perhaps a number of observations up to {_MOST:g}, with tabs between"
            raise ValueError(f"{location} is {line[:80]!r}, expected {columns}")
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


def check_languages(aligner: Aligner, text: SentencePairs | TextFiles) -> None:
    """Raise ValueError where each side has more words of the other language of the training text than of its own.

    The first pairs of the text tell.
    """
    pairs = list(islice(text, _FIRST))
    words = [[word for pair in pairs for word in pair[side]] for side in (0, 1)]
    counts = [[aligner.knows(side, language) for language in (0, 1)] for side in words]
    if counts[0][1] > counts[0][0] and counts[1][0] > counts[1][1]:
        raise ValueError(
            f"{text.names[0]} has the words of the target that the aligner was trained on, and {text.names[1]} those "
            f"of the source; swap the two files"
        )


def warn(message: str) -> None:
    """Print a message on standard error."""
    print(f"pyro-align: {message}", file=sys.stderr)
