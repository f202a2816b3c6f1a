"""Tables of text, for the terminal, for Markdown and for HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as a plain text table: text to the left, numbers to the right with four significant digits."""
    aligned = []
    for name in dict.fromkeys(name for row in rows for name in row) if columns is None else columns:
        values = [row.get(name, "") for row in rows]
        cells = [name, *map(_cell, values)]
        left, width = all(isinstance(value, str) for value in values), max(map(len, cells))
        aligned.append([cell.ljust(width) if left else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def metrics_table(metrics: Mapping[str, float | str]) -> str:
    """Metrics as a plain text table, one a line."""
    return as_table([{"metric": name, "value": value} for name, value in metrics.items()])


def _plain(text: str) -> str:
    """Text that neither ends a cell or the row, nor begins an element of HTML or a comment that ends a section."""
    return " ".join(text.splitlines()).replace("|", r"\|").replace("<", "&lt;")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table; columns are those of the first row. What is markup in a cell shows as text."""
    columns = list(rows[0])
    lines = [
        [_plain(str(cell)) for cell in line] for line in (columns, *([row[name] for name in columns] for row in rows))
    ]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def narrow(rows: Sequence[Mapping[str, Any]], labels: int, *, most: int = 100) -> list[list[dict[str, Any]]]:
    """The same rows as one table, or as several with the labels at the left of each, none wider than a page.

    A column is as wide as its longest word, for cells break at blanks, and has a margin of two letters.
    """
    columns = list(rows[0])
    widths = [
        2 + max(len(word) for line in (name, *(str(row[name]) for row in rows)) for word in ["", *line.split()])
        for name in columns
    ]
    left = sum(widths[:labels])
    tables, total = list[list[str]]([[]]), left
    for name, width in zip(columns[labels:], widths[labels:], strict=True):
        if total + width > most and tables[-1]:
            tables.append([])
            total = left
        tables[-1].append(name)
        total += width
    return [[{name: row[name] for name in (*columns[:labels], *table)} for row in rows] for table in tables]


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a table of HTML, the first cell of each as its head."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(element("th", name, scope="col") for name in columns)
    body = []
    for row in rows:
        first, *others = [_cell(row.get(name, "")) for name in columns]
        cells = [element("th", first, scope="row"), *(element("td", text) for text in others)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    lines = "\n".join([f"<thead><tr>{head}</tr></thead>", "<tbody>", *body, "</tbody>"])
    return f'<div class="scroll"><table class="data">{lines}</table></div>'


def element(tag: str, text: str, **attributes: str) -> str:
    """An element of HTML with plain text inside."""
    given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f"<{tag}{given}>{escape(text)}</{tag}>"
