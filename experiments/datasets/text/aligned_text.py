"""Text by hand-aligned gold links: raw lines divided as the links count words, and sentence pairs with their links."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.text.parallel_text import ParallelText, Rules, clean_pairs, read_lines
from experiments.datasets.text.plain_words import divide, plain
from pyro_attention.analysis import Alignment, GoldAlignment, read_pharaoh, read_sentences

__all__ = ["joined", "packed_pair", "read_divided", "read_gold_text"]


def packed_pair(folder: Path, stem: str, languages: tuple[str, str], *, of: str) -> tuple[Path, Path]:
    """Return the files of both languages, each plain or else packed (.gz).

    Args:
        folder: folder of the data set.
        stem: name of the files before the languages.
        languages: their endings.
        of: whose sentences they hold, for the error.

    Raises:
        FileNotFoundError: there is neither; the message names the first file that is missing.
    """
    paths = []
    for language in languages:
        path = folder / f"{stem}.{language}"
        found = next((file for file in (path, path.with_name(f"{path.name}.gz")) if file.is_file()), None)
        if found is None:
            expected = f"sentences of {of}, a line each, and the same for the other language, perhaps packed as .gz"
            raise missing(path, expected, folder.name)
        paths.append(found)
    return paths[0], paths[1]


def read_divided(path: Path, language: str, *, accents: bool) -> list[bytes]:
    """Return the lines of a raw text, which may be packed, with a blank between words; see `divide` and `plain`."""
    return [_divided(line, language, accents) for line in read_lines(path)]


def _divided(line: bytes, language: str, accents: bool) -> bytes:
    try:
        return divide(plain(line.decode(), accents=accents), language).encode()
    except UnicodeDecodeError:
        return line  # whoever checks the lines says where it is


def read_gold_text(
    files: tuple[Path, Path], links: Path, *, languages: tuple[str, str], name: str, rules: Rules, accents: bool
) -> ParallelText:
    """Read sentence pairs whose words are linked by hand, a sentence a line, with the links in Pharaoh format.

    All three files may have an id and a tab before each line. The words are those that the links count, whatever the
    rules say; no pair is left out.

    Args:
        files: sentences of both languages, the words of the first on the left of the links.
        links: the links, counted from 0.
        languages: languages of the files.
        name: name of the data set.
        rules: what becomes of a line.
        accents: whether letters keep their accents.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: sentences that do not go together, an empty one, or links to words that are not there.
    """
    first, second = (read_sentences(path) for path in files)
    gold = read_pharaoh(links)
    for other, path in ((second, files[1]), (gold, links)):
        _same_sentences(first, files[0], other, path)
    sides = [[plain(" ".join(words), accents=accents).encode() for words in side.values()] for side in (first, second)]
    whole = rules._replace(skip=False, words="none", max_words=None)
    text = clean_pairs(sides, files, whole, name=name, languages=languages)
    sure, possible = [], []
    for key, found in gold.items():
        sizes = len(first[key]), len(second[key])
        _check_links(found, sizes, f"{links}, sentence {key}")
        sure.append(Alignment(found.sure, *sizes))
        possible.append(Alignment(found.possible, *sizes))
    return replace(text, alignments=sure, possible=possible)


def _same_sentences(first: Mapping[str, object], path: Path, other: Mapping[str, object], other_path: Path) -> None:
    if list(first) == list(other):
        return
    differing = next(iter(first.keys() ^ other.keys()), "(in another order)")
    raise ValueError(
        f"{other_path} has {len(other)} sentences, {path} has {len(first)}, and sentence {differing[:80]} is in one of "
        f"them alone; expected the same ones in the same order. {NEW_COPY}"
    )


def _check_links(found: GoldAlignment, sizes: tuple[int, int], place: str) -> None:
    for left, right in sorted(found.possible):
        if left >= sizes[0] or right >= sizes[1]:
            raise ValueError(
                f"{place}: link {left}-{right} lies outside of {sizes[0]} and {sizes[1]} words; expected words counted "
                f"from 0. {NEW_COPY}"
            )


def joined(texts: list[ParallelText]) -> ParallelText:
    """Return one text out of several with links."""
    first = texts[0]
    source, target, sure, possible = (
        [one for text in texts for one in getattr(text, side) or ()]
        for side in ("source", "target", "alignments", "possible")
    )
    return ParallelText(source, target, first.name, first.languages, sure, possible=possible)
