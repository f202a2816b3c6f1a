"""Text files of the user's own that a trained network reads, and files that it must not write over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from experiments.datasets.text.parallel_text import ParallelText, Rules, checked_lines, read_lines
from experiments.files import UserError, user_errors, write_text


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
    with user_errors(OSError, ValueError):
        checked = list(checked_lines([read_lines(file)], [file], rules))
    faults = [fault.message for _, fault in checked if fault is not None]
    places = [place for place, (_, fault) in enumerate(checked) if fault is None]
    if not places:
        first = f", the first: {faults[0]}" if faults else ""
        raise UserError(f"{file} has no sentence to {task}; {len(faults)} lines can not be {task}d{first}")
    text = ParallelText([checked[place][0][0] for place in places], [""] * len(places), file.name, languages)
    return SourceText(text, places, faults)


def refuse_to_replace(files: Iterable[Path], *, overwrite: bool) -> None:
    """Raise UserError where a file is there already, unless it may be replaced."""
    for file in files:
        if file.exists() and not overwrite:
            raise UserError(f"{file} is there already and would be lost; choose another --out, or pass --overwrite")


def write_lines(path: Path, lines: Iterable[object]) -> None:
    """Write a line for each; raise UserError where the file can not be written."""
    write_text(path, "".join(f"{line}\n" for line in lines))
