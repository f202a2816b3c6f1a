"""Sentences and their translations, and reading them from two plain text files."""

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
    """Sentences and their translations; words are what blanks separate."""

    source: list[str]  # sentences to translate
    target: list[str]  # their translations, as many
    name: str  # name of the data set
    languages: tuple[str, str]  # languages of source and target
    alignments: list[Alignment] | None = None  # sure gold links between the words of each pair, where there are any
    skipped: dict[str, int] = field(default_factory=dict)  # number of pairs that were left out, by the reason
    possible: list[Alignment] | None = None  # gold links that may be as well, the sure ones among them

    def __len__(self) -> int:
        return len(self.source)

    def first(self, count: int) -> "ParallelText":
        """The first pairs, as many as there are."""
        return self.chosen(range(min(count, len(self))))

    def chosen(self, places: Sequence[int]) -> "ParallelText":
        """The pairs at these places, in this order."""
        source, target = ([side[place] for place in places] for side in (self.source, self.target))
        links = (self.alignments, self.possible)
        alignments, possible = (None if one is None else [one[place] for place in places] for one in links)
        return ParallelText(source, target, self.name, self.languages, alignments, self.skipped, possible)

    def turned(self) -> "ParallelText":
        """The same pairs with source and target swapped."""
        alignments, possible = (
            None if links is None else [one.transposed() for one in links] for links in (self.alignments, self.possible)
        )
        languages = self.languages[1], self.languages[0]
        return ParallelText(self.target, self.source, self.name, languages, alignments, self.skipped, possible)

    @property
    def gold(self) -> list[GoldAlignment] | None:
        """Sure and possible gold links of each pair, where there are any."""
        if self.alignments is None:
            return None
        both = zip(self.alignments, self.possible or self.alignments, strict=True)
        return [GoldAlignment(sure.links, possible.links) for sure, possible in both]


LETTERS = 50  # of a word, at most, on average over a sentence; a line of more is no sentence of words


class Rules(NamedTuple):
    """What becomes of a line."""

    lowercase: bool = False  # make all letters small
    max_words: int | None = None  # most words that a sentence may have on either side, of LETTERS letters on average
    skip: bool = False  # leave out pairs with a side that is empty, longer than max_words or not UTF-8, and count them
    words: WordRule = "none"  # how sentences are divided into words, see `divide_words`


class Fault(NamedTuple):
    """What is wrong with a line: a word to count it by, and a message of file, line, what was seen and expected."""

    reason: str
    message: str


def read_parallel(
    source: Path | str, target: Path | str, *, languages: tuple[str, str], name: str | None = None, **rules: Any
) -> ParallelText:
    """Read sentence pairs from two plain text files (UTF-8), where line i of one translates line i of the other.

    Only a line feed ends a line. White space (also no-break spaces) becomes single blanks.
    The name is by default that of the source file; the rules are fields of `Rules`.
    """
    paths = Path(source), Path(target)
    sides = [read_lines(path) for path in paths]
    return clean_pairs(sides, paths, Rules(**rules), name=name or paths[0].stem, languages=languages)


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, which may be packed (.gz), without their ends and without a byte order mark."""
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
    """Check and clean the lines of both sides, of all or of these numbers (counted from 0); see `read_parallel`."""
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{paths[0]}: {len(sides[0])} lines, but {len(sides[1])} in {paths[1]}; expected as many (in UTF-8), as "
            f"line i of one translates line i of the other. Find the line that is missing or divided."
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
                f"{fault.message}. Mend this line, remove the pair from both sides, or pass skip=True (--skip-bad on "
                f"the command line) to leave out and count such pairs."
            )
    if not pairs:
        raise ValueError(f"{paths[0]}: no sentence pairs, {skipped.total()} skipped; expected at least one.")
    source, target = map(list, zip(*pairs, strict=True))
    return ParallelText(source, target, name, languages, skipped=dict(skipped))


def checked_lines(
    sides: Sequence[list[bytes]], paths: Sequence[Path], rules: Rules, *, numbers: Iterable[int] | None = None
) -> Iterator[tuple[list[str], Fault | None]]:
    """Yield line i of every side as a sentence, and what is wrong with the first of them that has a fault.

    There is one side for a text to translate, and two for pairs; see also `clean_pairs`.
    """
    for number, *lines in zip(range(len(sides[0])) if numbers is None else numbers, *sides, strict=True):
        checked = [_check(line, f"{path}: line {number + 1}", rules) for line, path in zip(lines, paths, strict=True)]
        yield [text for text, _ in checked], next((fault for _, fault in checked if fault), None)


def _check(line: bytes, where: str, rules: Rules) -> tuple[str, Fault | None]:
    """The sentence of a line, and what is wrong with it."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        seen = f"is not UTF-8, its byte {error.start + 1} is 0x{line[error.start]:02x}"
        return "", Fault("undecodable", f"{where} {seen}; expected UTF-8 (iconv converts other encodings)")
    if rules.max_words is not None and len(text) > (most := LETTERS * rules.max_words):
        return "", Fault("long", f"{where} has {len(text)} letters; expected {most} at most ({LETTERS} * max_words)")
    text = divide_words(text, rules.words)
    count = len(text.split())
    if not count:
        return text, Fault("empty", f"{where} is empty; expected a sentence")
    if rules.max_words is not None and count > rules.max_words:
        return text, Fault("long", f"{where} has {count} words; expected {rules.max_words} at most (max_words)")
    return text.lower() if rules.lowercase else text, None
