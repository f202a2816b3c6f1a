"""Text files of the user's own that a trained network reads, and files that it must not write over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText, Rules, checked_lines, read_lines
from experiments.files import UserError, user_errors, write_atomic

__all__ = ["SourceText", "read_source", "refuse_to_replace", "write_lines"]


@dataclass(frozen=True)
class SourceText:
    """A file to write sentences of: its own without others, their lines from 0, and why other lines are left out."""

    text: ParallelText
    places: list[int]
    faults: list[str]

    def in_place(self, written: Iterable[str]) -> list[str]:
        """A line for each of the file: what was written of its sentence, and nothing of those left out."""
        lines = [""] * (len(self.places) + len(self.faults))
        for place, sentence in zip(self.places, written, strict=True):
            lines[place] = sentence
        return lines


def read_source(file: Path, rules: Rules, *, languages: tuple[str, str], task: str) -> SourceText:
    """Read a file, a sentence a line, for what the ``task`` says, "translate" or "summarize".

    Raises:
        UserError: The file cannot be read, or has no sentence.
    """
    sentences: dict[int, str] = {}
    faults: list[str] = []
    with user_errors(OSError, ValueError):
        lines = [read_lines(file)]
    for number, ([sentence], fault) in enumerate(checked_lines(lines, [file], rules)):
        if fault is None:
            sentences[number] = sentence
        else:
            faults.append(fault.message)
    if not sentences:
        first = f", the first: {faults[0]}" if faults else ""
        raise UserError(f"{file} has no sentence to {task}; {len(faults)} lines can not be {task}d{first}")
    text = ParallelText(list(sentences.values()), [""] * len(sentences), file.name, languages)
    return SourceText(text, list(sentences), faults)


def refuse_to_replace(files: Iterable[Path], *, overwrite: bool) -> None:
    """Raise UserError where a file is there already, unless it may be replaced, or where none can be put."""
    for file in files:
        if file.is_dir():
            raise UserError(f"{file} is a folder; expected the name of a file to write")
        if not next(folder for folder in file.absolute().parents if folder.exists()).is_dir():
            raise UserError(f"{file} can not be written: {file.parent} is no folder; choose another --out")
        if file.exists() and not overwrite:
            raise UserError(f"{file} is there already and would be lost; choose another --out, or pass --overwrite")


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write a line for each; raise UserError where the file can not be written."""
    with user_errors(OSError):
        write_atomic(path, lambda file: file.write("".join(f"{line}\n" for line in lines).encode()))
