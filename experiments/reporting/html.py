"""Elements of a self-contained HTML page."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from pathlib import Path

__all__ = ["document", "element", "image"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
pre { background: #f3f4f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.35; }
img { max-width: 100%; } p { max-width: 48rem; }
"""


def element(tag: str, text: str) -> str:
    """Plain text as a heading (h2), as a paragraph (p) or as it is (pre)."""
    return f"<{tag}>{html.escape(text)}</{tag}>"


def image(path: Path, caption: str) -> str:
    """A PNG file, put into the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'


def document(title: str, elements: Iterable[str]) -> str:
    """A page that needs no other file."""
    escaped = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escaped}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escaped}</h1>{''.join(elements)}</body></html>"
    )
