"""Text files that a trained network reads and writes, a sentence a line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.data.text.parallel_text import Rules, checked_lines, read_lines
from experiments.files import UserError, check_outputs, user_errors, write_text


@dataclass(frozen=True)
class SourceText:
    """Readable sentences of a file, with their lines, and the file to write to."""

    file: Path
    sentences: list[str]
    line_indices: list[int]  # line of each sentence, counted from 0
    line_count: int  # lines of the file, the unreadable ones among them
    out: Path  # file to write to

    def write(self, outputs: Sequence[str], cut: Sequence[bool]) -> None:
        """Write the output of each sentence into the line of the sentence; all other lines are empty.

        Print on stderr which outputs were ``cut`` at the largest length.
        """
        lines = [""] * self.line_count
        for index, output, is_cut in zip(self.line_indices, outputs, cut, strict=True):
            lines[index] = output
            if is_cut:
                print(f"{self.file}: line {index + 1} was cut at the largest length", file=sys.stderr)
        write_lines(self.out, lines)


def read_source(file: Path, rules: Rules, out: Path, overwrite: bool) -> SourceText:
    """Read a file of one sentence a line, and print on stderr which lines are left out.

    Args:
        file: The file.
        rules: How a line becomes a sentence.
        out: File that will be written.
        overwrite: Whether ``out`` may exist.

    Raises:
        UserError: The file cannot be read or has no sentence, or ``out`` would replace a file.
    """
    check_outputs([out], [file], overwrite=overwrite)
    with user_errors(OSError, ValueError):
        lines = list(checked_lines([read_lines(file)], [file], rules))
    for _, fault in lines:
        if fault is not None:
            print(f"{fault.message}; its line of {out.name} is empty", file=sys.stderr)
    indices = [index for index, (_, fault) in enumerate(lines) if fault is None]
    if not indices:
        raise UserError(f"{file} has no sentence that can be read")
    return SourceText(file, [lines[index][0][0] for index in indices], indices, len(lines), out)


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write a file with one item a line.

    Raises:
        UserError: The file cannot be written.
    """
    write_text(path, "".join(f"{line}\n" for line in lines))
