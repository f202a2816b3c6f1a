"""Tables of text, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_table", "markdown_table", "metrics_table"]


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as a plain text table: text to the left, numbers to the right with four significant digits.

    Example:
        >>> print(as_table([{"guide": "soft", "accuracy": 0.83}, {"guide": "weibull", "accuracy": 0.8381}]))
        guide    accuracy
        soft         0.83
        weibull    0.8381
    """
    aligned = []
    for name in dict.fromkeys(name for row in rows for name in row) if columns is None else columns:
        values = [row.get(name, "") for row in rows]
        cells = [name, *map(_cell, values)]
        left, width = all(isinstance(value, str) for value in values), max(map(len, cells))
        aligned.append([cell.ljust(width) if left else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Metrics as a plain text table, one a line."""
    return as_table([{"metric": name, "value": value} for name, value in metrics.items()])


def _plain(text: str) -> str:
    """Text that neither ends a cell or the row, nor begins an element of HTML or a comment that ends a section."""
    return " ".join(text.splitlines()).replace("|", r"\|").replace("<", "&lt;")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table; columns are those of the first row. What is markup in a cell shows as text.

    Example:
        >>> print(markdown_table([{"a": "x", "b": 1}]))
        | a | b |
        |---|---|
        | x | 1 |
    """
    columns = list(rows[0])
    lines = [
        [_plain(str(cell)) for cell in line] for line in (columns, *([row[name] for name in columns] for row in rows))
    ]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" * len(columns) + "|", *body])
