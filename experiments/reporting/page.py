"""RESULTS.md: sections written by scripts from the metrics of their runs; every other section stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.files import UserError, locked, read_json, reading, write_atomic

__all__ = ["RESULTS", "hardware", "update_section"]

RESULTS = Path(__file__).parents[1] / "RESULTS.md"
_HEAD = """# Results

Written by the scripts named in each section, from the metrics.json of their runs. Edit the scripts, not this page.
"""


def update_section(path: Path, name: str, text: str) -> None:
    """Replace one section of the page, or append it; the page is made when there is none.

    Several processes may write sections of one page at the same time: each waits for the others.

    Raises:
        UserError: The section's end is missing, or the page cannot be read or written.
    """
    path = path.resolve()  # a symbolic link stays one
    with locked(path):
        page = _with_section(path, name, text)
        write_atomic(path, lambda file: file.write(page.encode()))


def _with_section(path: Path, name: str, text: str) -> str:
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    try:
        page = path.read_bytes().decode() if path.exists() else _HEAD
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a page ({error}); choose another --results") from error
    section = f"{begin}\n{text.strip()}\n{end}\n"
    before, found, rest = page.partition(begin)
    if not found:
        return f"{page.rstrip()}\n\n{section}"
    _, closed, after = rest.partition(end)
    if not closed:
        raise UserError(f"{path}: section {name} has no line '{end}'; put it back or remove the section")
    return before + section + after.removeprefix("\n")


def hardware(folders: Sequence[Path]) -> str:
    """On what the runs in these folders were made, one phrase for each kind of machine.

    Raises:
        UserError: A folder's environment.json is missing or damaged.
    """
    kinds: dict[str, None] = {}
    for folder in folders:
        path, remedy = folder / "environment.json", "remove the folder, and the same command makes it again"
        with reading(path, "the hardware of a run", remedy):
            record = read_json(path, remedy)
            device = record["device"] if record["device"] != "cpu" else f"{record['cpus']} CPU cores"
            kinds[f"{device}, {record['system']}, torch {record['packages']['torch']}"] = None
    return "; ".join(kinds)
