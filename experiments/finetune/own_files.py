"""Files of one's own to predict for: their lines, and where the predictions go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.datasets.text.parallel_text import read_lines
from experiments.files import UserError
from experiments.finetune.config import PredictConfig

__all__ = ["output_file", "read_columns"]


def output_file(config: PredictConfig, ending: str) -> Path:
    """The file that predictions go into; beside the file with the texts, with this ending, when none is named.

    Raises:
        UserError: It is there already, and is not to be replaced.
    """
    out = config.out or config.file.with_name(f"{config.file.name}{ending}")
    if out.exists() and not config.overwrite:
        raise UserError(f"{out} is there already; pass --overwrite to replace it, or choose another --out")
    return out


def read_columns(path: Path, names: Sequence[str], expected: str) -> list[list[str]]:
    """The texts of every line, with single blanks; tabs stand between those of a line.

    Args:
        path: The file.
        names: What the texts of a line are, in their order.
        expected: What a line should be, to tell in errors.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line is not what it should be, or there are none.
    """
    rows = list[list[str]]()
    for number, line in enumerate(read_lines(path), 1):
        try:
            cells = [" ".join(cell.split()) for cell in line.decode().split("\t")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: line {number} is not UTF-8; save the file as UTF-8") from error
        if len(cells) != len(names):
            raise ValueError(
                f"{path}: line {number} has {len(cells) - 1} tabs, expected {len(names) - 1}: {expected}; mend the line"
            )
        if not all(cells):
            raise ValueError(
                f"{path}: line {number} has an empty {names[cells.index('')]}, expected {expected}; mend or remove the "
                f"line"
            )
        rows.append(cells)
    if not rows:
        raise ValueError(f"{path} is empty, expected {expected} a line")
    return rows
