"""Files of word alignments: Pharaoh links, the columns of the Hansards, and the sentences beside them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyro_attention.analysis.alignments.scores import GoldAlignment
from pyro_attention.analysis.alignments.weights import Alignment, Link

__all__ = ["Lengths", "read_naacl", "read_pharaoh", "read_sentences", "write_pharaoh"]

Lengths = Mapping[str, tuple[int, int]]
_Links = tuple[set[Link], set[Link]]  # sure and possible ones

_LINK = re.compile(r"(\d{1,9})([-p])(\d{1,9})", re.ASCII)
_COLUMNS = re.compile(r"\s*(\S+)\s+(\d{1,9})\s+(\d{1,9})(?:\s+([SP]))?(?:\s+\d+(?:\.\d*)?)?\s*", re.ASCII)


def read_pharaoh(
    path: str | Path, *, index: int = 0, target_first: bool = False, lengths: Lengths | None = None
) -> dict[str, GoldAlignment]:
    r"""Read one sentence pair a line, ``i-j`` sure links and ``ipj`` possible ones.

    Args:
        path: The file, in UTF-8. Its lines may begin with an id and a tab.
        index: 0 or 1, what the first word counts as.
        target_first: The target word stands on the left of a link.
        lengths: Number of source and of target words by sentence id; links are then checked against them.

    Returns:
        Links by sentence id; the number of the line, from 0, where there are no ids.

    Raises:
        ValueError: What is no link, links out of range, ids that repeat or are missing in lengths; with file and line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "gold.txt")
        >>> _ = path.write_text("7\t0-0 1p0\n9\t\n")
        >>> {name: str(gold) for name, gold in read_pharaoh(path).items()}
        {'7': '0-0 1p0', '9': ''}
    """
    _check_index(index)
    links: dict[str, _Links] = {}
    for place, name, text in _named_lines(Path(path)):
        links[name] = (set(), set())
        for item in text.split():
            match = _LINK.fullmatch(item)
            if match is None:
                raise ValueError(
                    f"{place}: {item[:80]!r} is no link, expected i-j for a sure one or ipj for a possible one"
                )
            link = _link(place, name, (match[1], match[3]), index, target_first, lengths)
            links[name][match[2] == "p"].add(link)
    return {name: GoldAlignment(*map(frozenset, pair)) for name, pair in links.items()}


def read_naacl(
    path: str | Path, *, index: int = 1, target_first: bool = False, lengths: Lengths | None = None
) -> dict[str, GoldAlignment]:
    r"""Read one link a line, ``sentence source target [S|P] [confidence]``: the format of the Hansards' gold links.

    Args:
        path: The file, in UTF-8. A link without S or P is sure; the confidence is not used.
        index: 0 or 1, what the first word counts as.
        target_first: The target word is the second column.
        lengths: Number of source and of target words by sentence id; links are then checked against them, and
            sentences without a line have no links instead of being left out.

    Returns:
        Links by sentence id, as written in the file ("0001").

    Raises:
        ValueError: Other columns, or links out of range; with file and line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "gold.wa")
        >>> _ = path.write_text("0001 1 1 S\n0001 2 1 P\n")
        >>> {name: str(gold) for name, gold in read_naacl(path).items()}
        {'0001': '0-0 1p0'}

    Source: Mihalcea and Pedersen (2003), An Evaluation Exercise for Word Alignment.
    """
    _check_index(index)
    links: dict[str, _Links] = {name: (set(), set()) for name in lengths or ()}
    for place, line in _lines(Path(path)):
        if not line.strip():
            continue
        match = _COLUMNS.fullmatch(line)
        if match is None:
            raise ValueError(
                f"{place} is {line[:200]!r}, expected the columns sentence, source, target, S or P, confidence"
            )
        name, kind = match[1], match[4]
        link = _link(place, name, (match[2], match[3]), index, target_first, lengths)
        links.setdefault(name, (set(), set()))[kind == "P"].add(link)
    return {name: GoldAlignment(*map(frozenset, pair)) for name, pair in links.items()}


def read_sentences(path: str | Path) -> dict[str, list[str]]:
    r"""Read one sentence a line, its words between spaces; an id and a tab may stand before it.

    Args:
        path: The file, in UTF-8.

    Returns:
        Words by sentence id; the number of the line, from 0, where there are no ids.

    Raises:
        ValueError: Ids that repeat, or that some lines have and others have not; with file and line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "de.txt")
        >>> _ = path.write_text("7\tDas stimmt nicht !\n", encoding="utf-8")
        >>> read_sentences(path)
        {'7': ['Das', 'stimmt', 'nicht', '!']}
    """
    return {name: text.split() for _, name, text in _named_lines(Path(path))}


def write_pharaoh(
    path: str | Path,
    alignments: Mapping[str, Alignment | GoldAlignment] | Sequence[Alignment | GoldAlignment],
    *,
    index: int = 0,
) -> None:
    r"""Write one sentence pair a line, links in order, ``i-j`` or ``ipj``; with an id and a tab for a mapping.

    Args:
        path: The file.
        alignments: Alignments by sentence id, or in a sequence.
        index: 0 or 1, what the first word counts as; others read 0.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "links.txt")
        >>> write_pharaoh(path, [Alignment(frozenset({(1, 0), (0, 2)}), 2, 3)])
        >>> path.read_text()
        '0-2 1-0\n'
    """
    _check_index(index)
    named = isinstance(alignments, Mapping)
    lines = []
    for name, alignment in alignments.items() if isinstance(alignments, Mapping) else enumerate(alignments):
        if not isinstance(alignment, Alignment | GoldAlignment):
            raise TypeError(f"sentence {name} has a {type(alignment).__name__}, expected an Alignment or GoldAlignment")
        text = _LINK.sub(lambda match: f"{int(match[1]) + index}{match[2]}{int(match[3]) + index}", str(alignment))
        lines.append(f"{name}\t{text}\n" if named else f"{text}\n")
    Path(path).write_text("".join(lines), encoding="utf-8")


def _check_index(index: int) -> None:
    if index not in (0, 1):
        raise ValueError(f"index is {index}, expected 0 or 1: what the first word of a sentence counts as")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Place, for errors, and text of every line."""
    # a byte order mark is no part of the first id; str.splitlines would also break at characters such as U+2028
    try:
        lines = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}; expected UTF-8. Convert the file (iconv does), or take another.") from error
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        yield f"{path}, line {number}", line


def _named_lines(path: Path) -> Iterator[tuple[str, str, str]]:
    """Place, id and text of every line."""
    lines = list(_lines(path))
    with_ids = bool(lines) and "\t" in lines[0][1]
    seen: set[str] = set()
    for number, (place, line) in enumerate(lines):
        if with_ids != ("\t" in line):
            other = "no id" if with_ids else "an id"
            raise ValueError(f"{place} has {other} and a tab before its text, unlike the first; expected all or none")
        name, text = line.split("\t", 1) if with_ids else (str(number), line)
        if name.strip() in seen:
            raise ValueError(f"{place}: the sentence id {name.strip()!r} occurs twice, expected it once")
        seen.add(name.strip())
        yield place, name.strip(), text


def _link(
    place: str, name: str, numbers: tuple[str, str], index: int, target_first: bool, lengths: Lengths | None
) -> Link:
    """A link (source, target) counted from 0, in range."""
    first, second = (int(number) - index for number in numbers)
    if min(first, second) < 0:
        raise ValueError(
            f"{place}, sentence {name}: a link has position 0 where words are counted from 1; pass index=0 if they are "
            f"counted from 0, or take the gold file without links to NULL"
        )
    source, target = (second, first) if target_first else (first, second)
    if lengths is not None and name not in lengths:
        raise ValueError(f"{place}: sentence {name} has no entry in lengths, expected one for every sentence")
    num_source, num_target = (math.inf, math.inf) if lengths is None else lengths[name]
    if source >= num_source or target >= num_target:
        raise ValueError(
            f"{place}, sentence {name}: link {'-'.join(numbers)} lies outside of {num_source} source and {num_target} "
            f"target words; look at index={index}, target_first={target_first} and the sentences"
        )
    return source, target
