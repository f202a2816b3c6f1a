"""RESULTS.md: sections written by scripts from the metrics of their runs; every other section stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results import UserError, write_atomic

__all__ = ["RESULTS", "hardware", "markdown_table", "update_section"]

RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """# Results

Written by the scripts named in each section, from the metrics.json of their runs. Edit the scripts, not this page.
"""


def update_section(path: Path, name: str, text: str) -> None:
    """Replace one section of the page, or append it; the page is made when there is none.

    Raises:
        UserError: The section's end is missing.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    page = path.read_text() if path.is_file() else _HEAD
    section = f"{begin}\n{text.strip()}\n{end}\n"
    before, found, rest = page.partition(begin)
    if not found:
        page = f"{page.rstrip()}\n\n{section}"
    else:
        _, closed, after = rest.partition(end)
        if not closed:
            raise UserError(f"{path}: section {name} has no line '{end}'; put it back or remove the section")
        page = before + section + after.removeprefix("\n")
    write_atomic(path, lambda file: file.write(page.encode()))


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table; columns are those of the first row.

    Example:
        >>> print(markdown_table([{"a": "x", "b": 1}]))
        | a | b |
        |---|---|
        | x | 1 |
    """
    columns = list(rows[0])
    lines = [columns, *([str(row[name]) for name in columns] for row in rows)]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def hardware(folders: Sequence[Path]) -> str:
    """On what the runs in these folders were made, one phrase for each kind of machine."""
    kinds: dict[str, None] = {}
    for folder in folders:
        record = json.loads((folder / "environment.json").read_text())
        device = record["device"] if record["device"] != "cpu" else f"{record['cpus']} CPU cores"
        kinds[f"{device}, {record['system']}, torch {record['packages']['torch']}"] = None
    return "; ".join(kinds)
