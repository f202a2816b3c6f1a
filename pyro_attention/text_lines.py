r"""Lines of text files: ``\n`` and ``\r\n`` end a line, and nothing else does.

:meth:`str.splitlines` also ends lines at form feeds, vertical tabs, U+0085 and U+2028, and the universal newlines of
:meth:`pathlib.Path.read_text` at a lone carriage return. Text from PDF files, web pages and old programs holds all of
these inside of sentences, and a sentence that is cut in two shifts every line after it.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import AnyStr

__all__ = ["check_characters", "decode_lines", "read_lines", "split_lines"]

_HALF_PAIR = re.compile("[\ud800-\udfff]")


def split_lines(text: AnyStr) -> list[AnyStr]:
    r"""Return the lines of a text, as characters or as bytes, without their ends.

    Example:
        >>> split_lines("one\r\ntwo\rthree\u2028four\n\nfive")
        ['one', 'two\rthree\u2028four', '', 'five']
    """
    feed, carriage = ("\n", "\r") if isinstance(text, str) else (b"\n", b"\r")
    lines = text.split(feed)
    last = lines.pop()
    lines = [line.removesuffix(carriage) for line in lines]
    if last:
        lines.append(last)
    return lines


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield location (for error messages) and text of every line of a file in UTF-8, which may be packed by gzip.

    The file is read line by line, so that its size does not matter. A byte order mark is no part of the first word.

    Raises:
        ValueError: A line is not UTF-8, or a file whose name ends with ``.gz`` is not packed by gzip.
        OSError: The file cannot be read.
    """
    path = Path(path)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            yield from _decoded(file, str(path))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}), expected a file packed by gzip") from error


def decode_lines(content: bytes, name: str) -> Iterator[tuple[str, str]]:
    """Yield location and text of every line of some bytes in UTF-8; see :func:`read_lines`.

    Args:
        content: The bytes of a file.
        name: Name of the file in the locations.
    """
    yield from _decoded(split_lines(content), name)


def check_characters(text: str) -> None:
    r"""Raise ValueError where a text has half of a surrogate pair, which is no character and has no place in UTF-8.

    JSON can hold one: an emoji that was cut in two is ``"\ud83d"``.
    """
    if half := _HALF_PAIR.search(text):
        at = half.start()
        raise ValueError(
            f"the text {text[max(0, at - 20) : at + 20]!r} has {half[0]!r}, half of a character (of a surrogate pair); "
            f"expected whole ones: put the other half beside it, or '\\ufffd' in its place"
        )


def _decoded(lines: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, start=1):
        location = f"{name}, line {number}"
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if text.endswith(b"\n"):  # of a file; only then does a carriage return belong to the end
            text = text[:-1].removesuffix(b"\r")
        try:
            yield location, text.decode()
        except UnicodeDecodeError as error:
            problem = f"byte {error.start + 1} is 0x{text[error.start]:02x}"
            raise ValueError(f"{location}: {problem}; expected UTF-8, convert the file (iconv does)") from error
