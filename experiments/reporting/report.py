"""What a script reports: one declaration for the terminal, for report.html and for a section of RESULTS.md."""

from __future__ import annotations

import base64
import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from experiments.files import write_atomic
from experiments.reporting.columns import Row
from experiments.reporting.page import update_section
from experiments.reporting.tables import as_table, markdown_table

__all__ = ["Part", "Report"]

_WIDTH = 100  # letters in a line on the terminal
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
pre { background: #f3f4f6; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem; line-height: 1.35; }
img { max-width: 100%; } p { max-width: 48rem; }
"""


@dataclass(frozen=True)
class Part:
    """One part of a report: a heading, text, a table and a picture, each if there is one."""

    title: str = ""
    text: str = ""  # a paragraph, or several with an empty line between them
    rows: Sequence[Row] = ()
    lines: str = ""  # shown as they are
    picture: Path | None = None  # a PNG file; the page links to it, and report.html holds it
    caption: str = ""  # of the picture; the title when omitted
    terminal: bool = True  # whether the terminal shows it; of a part with a picture it names the file, and no more
    page: bool = True  # whether RESULTS.md shows it; there a picture has to lie in the folder pictures/ beside the page

    def _terminal(self) -> Iterator[str]:
        body = [as_table(self.rows) if self.rows else "", self.lines]
        if any(body):
            yield "\n".join(part for part in (f"{self.title}:" if self.title else "", *body) if part)
        yield from (textwrap.fill(paragraph, _WIDTH) for paragraph in self.text.split("\n\n"))

    def _markdown(self) -> Iterator[str]:
        if self.title:
            yield f"### {self.title}"
        yield self.text
        if self.rows:
            yield markdown_table(self.rows)
        if self.lines:
            yield f"```\n{self.lines}\n```"
        if self.picture is not None:
            yield f"![{self.caption or self.title}](pictures/{self.picture.name})"

    def _html(self) -> Iterator[str]:
        texts = [("h2", self.title), *(("p", paragraph) for paragraph in self.text.split("\n\n"))]
        texts += [("pre", as_table(self.rows) if self.rows else ""), ("pre", self.lines)]
        yield from (_element(tag, text) for tag, text in texts if text)
        if self.picture is not None:
            data = base64.b64encode(self.picture.read_bytes()).decode()
            yield f'<img alt="{html.escape(self.caption or self.title)}" src="data:image/png;base64,{data}">'
            yield _element("p", self.caption) if self.caption else ""


@dataclass(frozen=True)
class Report:
    """What a script reports."""

    title: str
    section: str  # its name in RESULTS.md
    parts: Sequence[Part]

    def terminal(self) -> str:
        """The parts that the terminal shows, and the files of all pictures."""
        texts = [part._terminal() for part in self.parts if part.terminal and part.picture is None]
        pictures = "\n".join(str(part.picture) for part in self.parts if part.picture is not None)
        return "\n\n".join(filter(None, [*chain.from_iterable(texts), pictures]))

    def markdown(self, source: str) -> str:
        """The section of RESULTS.md, under a line on how it was made."""
        shown = [text for part in self.parts if part.page for text in part._markdown() if text]
        return "\n\n".join([f"## {self.title}", source, *shown])

    def html(self, source: str, *, configuration: str) -> str:
        """All parts as a page that needs no other file, and the configuration below."""
        parts, title = [*self.parts, Part("Configuration", lines=configuration)], html.escape(self.title)
        body = "".join([_element("p", source), *(text for part in parts for text in part._html())])
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{body}</body></html>"
        )

    def publish(self, folder: Path, page: Path | None, *, source: str) -> None:
        """Write report.html into the script's folder, the section into a page if there is one, and print the rest.

        ``source`` says how the results were made: the command, seeds and hardware.
        """
        path, text = folder / "report.html", self.html(source, configuration=(folder / "config.yaml").read_text())
        write_atomic(path, lambda file: file.write(text.encode()))
        if page is not None:
            update_section(page, self.section, self.markdown(source))
        print("", self.terminal(), "", path, *([] if page is None else [page]), sep="\n", flush=True)


def _element(tag: str, text: str) -> str:
    """Plain text as a heading (h2), as a paragraph (p) or as it is (pre)."""
    return f"<{tag}>{html.escape(text)}</{tag}>"
