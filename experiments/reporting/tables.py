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
    columns = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    cells = [[_cell(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    text = [all(isinstance(row.get(name, ""), str) for row in rows) for name in columns]
    lines = []
    for line in [list(columns), *cells]:
        aligned = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, text, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Metrics as a plain text table, one a line."""
    return as_table([{"metric": name, "value": value} for name, value in metrics.items()])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
