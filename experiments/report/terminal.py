"""Output that fits a terminal: tables with the columns that have room, prose of its width, and the main metrics.

Only the standard library is imported, as the help needs it too.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

_NARROWEST, _WIDEST = 80, 100  # letters; longer lines of prose are hard to read
_GAP = "  "  # between two columns
SHOWN_METRICS = 8  # the most that a command prints without being told to print all


def width() -> int:
    """Return the number of letters in a line of the terminal, 80 at least and 100 at most."""
    return min(max(shutil.get_terminal_size((_NARROWEST, 24)).columns, _NARROWEST), _WIDEST)


def wrapped(text: str, *, indent: str = "") -> str:
    """Break the lines of a text at the width of the terminal; further lines of one begin with ``indent``.

    Words that are longer, such as paths, stay whole. Marks of code go: they are for pages.

    Example:
        >>> print(wrapped("`--rows` " + 9 * "some words ", indent="  "))
        --rows some words some words some words some words some words some words some
          words some words some words
    """
    lines = text.replace("`", "").splitlines()
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(
        textwrap.fill(line, width(), subsequent_indent=line[: len(line) - len(line.lstrip())] + indent, **options)
        for line in lines
    )


def listed(lines: Mapping[str, str]) -> str:
    """Format names with what they are, a line each, which goes on below its beginning where it is long."""
    column = max(map(len, lines)) + 4
    entries = [f"  {name}".ljust(column) + line for name, line in lines.items()]
    return "\n".join(wrapped(entry, indent=(column - 2) * " ") for entry in entries)


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a text table: text to the left, numbers to the right with four significant digits.

    Columns that have no room in a line of the terminal are left out, and named below. The first two, of which the first
    names a row, are always shown, and cut where they are too long.

    Example:
        >>> print(as_table([{"row": "soft", "accuracy": 0.5}, {"row": "weibull", "accuracy": 0.625}]))
        row      accuracy
        soft          0.5
        weibull     0.625
    """
    heads = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name, "") for row in rows] for name in heads}
    texts = {name: [name, *map(_cell, values)] for name, values in columns.items()}
    left_out = list(texts)[_number_that_fits(texts) :]
    texts = _cut({name: cells for name, cells in texts.items() if name not in left_out})
    aligned = []
    for name, cells in texts.items():
        size, is_text = max(map(len, cells)), all(isinstance(value, str) for value in columns[name])
        aligned.append([cell.ljust(size) if is_text else cell.rjust(size) for cell in cells])
    lines = [_GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]
    if left_out:
        lines.append(wrapped(f"({len(left_out)} more columns in the file named below: {', '.join(left_out)})"))
    return "\n".join(lines)


def metrics_table(metrics: Mapping[str, float | str], main: Sequence[str] = ()) -> str:
    """Format metrics as a text table, a line each.

    The ``main`` ones come first, as far as there are any. With them the table is short and ends with the number of the
    others, and the first is marked: it is the one that the task is judged by.
    """
    chosen = [name for name in main if name in metrics]
    if not chosen:
        return as_table([{"metric": name, "value": value} for name, value in metrics.items()])
    rows = [{"metric": name, "value": metrics[name]} for name in chosen[:SHOWN_METRICS]]
    head, judged, *more = as_table(rows).splitlines()
    lines, hidden = [head, f"{judged}  <- judges the task", *more], len(metrics) - len(rows)
    return "\n".join([*lines, f"{hidden} more in metrics.json"] if hidden else lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number_that_fits(texts: Mapping[str, Sequence[str]]) -> int:
    """Number of columns that a line has room for, two at least."""
    used, number = -len(_GAP), 0
    for cells in texts.values():
        used += max(map(len, cells)) + len(_GAP)
        if used > width() and number >= 2:
            break
        number += 1
    return number


def _cut(texts: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Cut the longest cells, so that a line has room for all columns."""
    room = width() - len(_GAP) * (len(texts) - 1)
    sizes = [max(map(len, cells)) for cells in texts.values()]
    size = next(size for size in range(room, 0, -1) if sum(min(size, needed) for needed in sizes) <= room)
    return {
        name: [cell if len(cell) <= size else f"{cell[: size - 1]}…" for cell in cells] for name, cells in texts.items()
    }
