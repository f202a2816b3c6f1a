"""Sentence pairs, and how they are read from two plain text files."""

import codecs
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from experiments.data.text.word_rules import WordRule, divide_words
from experiments.files import read_packed, reading
from pyro_attention.analysis import Alignment, GoldAlignment
from pyro_attention.text_lines import split_lines


@dataclass(frozen=True, eq=False)
class ParallelText:
    """Sentence pairs, with blanks between the words.

    Attributes:
        source: Sentences to translate.
        target: Translation of each sentence.
        name: Name of the data set.
        languages: Languages of source and target.
        alignments: Sure gold links of each pair; None for text without gold links.
        skipped: Number of pairs that were left out, by reason.
        possible: Possible gold links of each pair, which include the sure links; None if all links are sure.
    """

    source: list[str]
    target: list[str]
    name: str
    languages: tuple[str, str]
    alignments: list[Alignment] | None = None
    skipped: dict[str, int] = field(default_factory=dict)
    possible: list[Alignment] | None = None

    def __len__(self) -> int:
        return len(self.source)

    def first(self, count: int) -> "ParallelText":
        """Return the first ``count`` pairs, or all if there are fewer."""
        return self.chosen(range(min(count, len(self))))

    def chosen(self, indices: Sequence[int]) -> "ParallelText":
        """Return the pairs with these indices, in this order."""
        source, target = ([side[index] for index in indices] for side in (self.source, self.target))
        alignments, possible = (
            None if links is None else [links[index] for index in indices] for links in (self.alignments, self.possible)
        )
        return ParallelText(source, target, self.name, self.languages, alignments, self.skipped, possible)

    def joined(self, count: int) -> "ParallelText":
        """Return texts of ``count`` pairs each, the last one perhaps of fewer; links count the words of the text."""
        texts = [range(first, min(first + count, len(self))) for first in range(0, len(self), count)]
        source, target = (
            [" ".join(side[row] for row in rows) for rows in texts] for side in (self.source, self.target)
        )
        alignments, possible = (
            None if links is None else [_joined_links([links[row] for row in rows]) for rows in texts]
            for links in (self.alignments, self.possible)
        )
        return ParallelText(source, target, self.name, self.languages, alignments, self.skipped, possible)

    def swapped(self) -> "ParallelText":
        """Return the pairs with source and target swapped."""
        alignments, possible = (
            None if links is None else [alignment.transposed() for alignment in links]
            for links in (self.alignments, self.possible)
        )
        languages = self.languages[1], self.languages[0]
        return ParallelText(self.target, self.source, self.name, languages, alignments, self.skipped, possible)

    def word_pairs(self) -> list[tuple[list[str], list[str]]]:
        """Return the source and target words of every pair."""
        return [(source.split(), target.split()) for source, target in zip(self.source, self.target, strict=True)]

    @property
    def gold(self) -> list[GoldAlignment] | None:
        """Sure and possible gold links of each pair; None for text without gold links."""
        if self.alignments is None:
            return None
        both = zip(self.alignments, self.possible or self.alignments, strict=True)
        return [GoldAlignment(sure.links, possible.links) for sure, possible in both]


def _joined_links(parts: Sequence[Alignment]) -> Alignment:
    """Return the links of sentence pairs that follow each other."""
    links, source, target = list[tuple[int, int]](), 0, 0
    for part in parts:
        links += [(s + source, t + target) for s, t in part.links]
        source, target = source + part.num_source, target + part.num_target
    return Alignment(frozenset(links), source, target)


LETTERS = 50  # largest mean length of the words of a sentence; a line with more letters is no sentence


class Rules(NamedTuple):
    """Rules by which a line becomes a sentence.

    Attributes:
        lowercase: Convert all letters to lower case.
        max_words: Largest number of words of a sentence, of LETTERS letters on average; any number for None.
        skip: Leave out and count pairs with a side that is empty, too long or not UTF-8, instead of stopping.
        words: How sentences are divided into words; see `divide_words`.
    """

    lowercase: bool = False
    max_words: int | None = None
    skip: bool = False
    words: WordRule = "none"


class Fault(NamedTuple):
    """Fault of a line.

    Attributes:
        reason: Kind of the fault in one word, by which faults are counted.
        message: File and line, what was seen and what was expected.
    """

    reason: str
    message: str


def read_parallel(
    source: Path | str, target: Path | str, *, languages: tuple[str, str], name: str | None = None, **rules: Any
) -> ParallelText:
    """Read sentence pairs from two plain text files (UTF-8), where line i of one translates line i of the other.

    Only a line feed ends a line. White space, including no-break spaces, becomes single blanks.

    Args:
        source: File of the source sentences.
        target: File of their translations.
        languages: Languages of source and target.
        name: Name of the text; that of the source file when omitted.
        rules: Fields of `Rules`.

    Raises:
        ValueError: The files differ in their number of lines, or a line is bad.
        DamagedFileError: A file is missing or cannot be read.
    """
    paths = Path(source), Path(target)
    sides = [read_lines(path) for path in paths]
    return clean_pairs(sides, paths, Rules(**rules), name=name or paths[0].stem, languages=languages)


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, which may be packed (.gz), without line ends and without a byte order mark."""
    with reading(path, "a plain text file (UTF-8) of one sentence a line"):
        return split_lines(read_packed(path).removeprefix(codecs.BOM_UTF8))


def clean_pairs(
    sides: Sequence[list[bytes]],
    paths: tuple[Path, Path],
    rules: Rules,
    *,
    name: str,
    languages: tuple[str, str],
    numbers: Sequence[int] | None = None,
) -> ParallelText:
    """Check and clean the lines of both sides.

    Args:
        sides: Lines of the source and of the target.
        paths: Their files, for messages.
        rules: How a line becomes a sentence.
        name: Name of the text.
        languages: Languages of source and target.
        numbers: Numbers of the lines to use, counted from 0; all lines when omitted.

    Raises:
        ValueError: The sides differ in their number of lines, or a line is bad.
    """
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{paths[0]}: {len(sides[0])} lines, but {len(sides[1])} in {paths[1]}; expected as many (in UTF-8), as "
            f"line i of one translates line i of the other; find the line that is missing or divided"
        )
    if numbers is not None:
        sides = [[side[number] for number in numbers] for side in sides]
    pairs: list[list[str]] = []
    skipped: Counter[str] = Counter()
    for texts, fault in checked_lines(sides, paths, rules, numbers=numbers):
        if fault is None:
            pairs.append(texts)
        elif rules.skip:
            skipped[fault.reason] += 1
        else:
            raise ValueError(
                f"{fault.message}; correct this line, or remove the pair from both sides; a training leaves such pairs "
                f"out and counts them with --skip-bad (skip=True)"
            )
    if not pairs:
        raise ValueError(f"{paths[0]}: no sentence pairs, {skipped.total()} skipped; expected at least one")
    source, target = map(list, zip(*pairs, strict=True))
    return ParallelText(source, target, name, languages, skipped=dict(skipped))


def checked_lines(
    sides: Sequence[list[bytes]], paths: Sequence[Path], rules: Rules, *, numbers: Iterable[int] | None = None
) -> Iterator[tuple[list[str], Fault | None]]:
    """Yield the sentences of line i of every side, and the first fault among these lines.

    A text to translate has one side, sentence pairs have two; the arguments are those of `clean_pairs`.
    """
    for number, *lines in zip(range(len(sides[0])) if numbers is None else numbers, *sides, strict=True):
        checked = [_check(line, f"{path}: line {number + 1}", rules) for line, path in zip(lines, paths, strict=True)]
        yield [text for text, _ in checked], next((fault for _, fault in checked if fault), None)


def _check(line: bytes, where: str, rules: Rules) -> tuple[str, Fault | None]:
    """Return the sentence of a line, and its fault if there is one."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        byte = f"its byte {error.start + 1} is 0x{line[error.start]:02x}"
        return "", Fault(
            "undecodable", f"{where} is not UTF-8, {byte}; expected UTF-8 (iconv converts other encodings)"
        )
    if rules.max_words is not None and len(text) > (largest := LETTERS * rules.max_words):
        return "", Fault("long", f"{where} has {len(text)} letters; expected {largest} at most ({LETTERS} * max_words)")
    text = divide_words(text, rules.words)
    count = len(text.split())
    if not count:
        return text, Fault("empty", f"{where} is empty; expected a sentence")
    if rules.max_words is not None and count > rules.max_words:
        return text, Fault("long", f"{where} has {count} words; expected {rules.max_words} at most (max_words)")
    return text.lower() if rules.lowercase else text, None
