"""Text files of the user's own that a trained network reads, and files that it must not write over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data.text.parallel_text import Rules, checked_lines, read_lines
from experiments.files import UserError, check_outputs, user_errors, write_text


@dataclass(frozen=True)
class SourceText:
    """The sentences of a file that can be read, in these lines, counted from 0, of so many; and where to write."""

    file: Path
    sentences: list[str]
    places: list[int]
    lines: int
    out: Path

    def write(self, written: Sequence[str], cut: Sequence[bool]) -> None:
        """Write a line for each of the file, empty where there is no sentence; say on stderr which were cut."""
        lines = [""] * self.lines
        for place, sentence, is_cut in zip(self.places, written, cut, strict=True):
            lines[place] = sentence
            if is_cut:
                print(f"{self.file}: line {place + 1} was cut at the largest length", file=sys.stderr)
        write_lines(self.out, lines)


def read_source(file: Path, rules: Rules, out: Path, overwrite: bool) -> SourceText:
    """Read a file, a sentence a line, and say on stderr which lines are left out.

    Raises:
        UserError: The file cannot be read or has no sentence, or what is to be written would replace a file.
    """
    check_outputs([out], [file], overwrite=overwrite)
    with user_errors(OSError, ValueError):
        checked = list(checked_lines([read_lines(file)], [file], rules))
    for _, fault in checked:
        if fault is not None:
            print(f"{fault.message}; its line of {out.name} is empty", file=sys.stderr)
    places = [place for place, (_, fault) in enumerate(checked) if fault is None]
    if not places:
        raise UserError(f"{file} has no sentence that can be read")
    return SourceText(file, [checked[place][0][0] for place in places], places, len(checked), out)


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write a line for each; raise UserError where the file can not be written."""
    write_text(path, "".join(f"{line}\n" for line in lines))
