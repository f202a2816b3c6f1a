"""A self-contained HTML page of tables and pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.files import write_atomic

__all__ = ["Section", "write_report"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
pre { background: #f3f4f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.35; }
img { max-width: 100%; } p { max-width: 48rem; }
"""


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        title: Heading.
        text: A paragraph of plain text.
        table: Text table, shown as it is.
        picture: A PNG file, put into the page.
    """

    title: str
    text: str = ""
    table: str = ""
    picture: Path | None = None


def write_report(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page, atomically; it needs no other file.

    Args:
        path: Where to.
        title: Title of the page.
        sections: Its parts, in order.
    """
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{html.escape(section.text)}</p>")
        if section.table:
            parts.append(f"<pre>{html.escape(section.table)}</pre>")
        if section.picture is not None:
            data = base64.b64encode(section.picture.read_bytes()).decode()
            parts.append(f'<img alt="{html.escape(section.title)}" src="data:image/png;base64,{data}">')
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    write_atomic(path, lambda file: file.write(page.encode()))
    return path
