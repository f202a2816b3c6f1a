"""What a script reports: one declaration for the terminal, for report.html and for a section of RESULTS.md."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path

from experiments.files import write_atomic
from experiments.reporting.columns import Row
from experiments.reporting.page import update_section
from experiments.reporting.plots import Plot
from experiments.reporting.tables import as_table, element, html_table, markdown_table
from pyro_attention.viewer import View, document, fragment

__all__ = ["Part", "Report"]

_WIDTH = 100  # letters in a line on the terminal


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
    # of report.html alone
    best: frozenset[tuple[int, str]] = frozenset()  # cells of the rows that are marked: number of the row, its head
    plots: Sequence[Plot] = ()  # in place of the lines, which say the same
    views: Sequence[View] = ()  # alignments to look at; one part of a report at most has them

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
        if self.title:
            yield element("h2", self.title)
        if self.rows:
            yield html_table(self.rows, self.best)
        yield from (element("p", paragraph) for paragraph in self.text.split("\n\n") if paragraph)
        for plot in self.plots:
            yield f"<figure>{element('figcaption', plot.title)}{plot.svg()}</figure>"
        if self.lines and not self.plots:
            yield element("pre", self.lines)
        if self.views:
            yield fragment(self.views)
        if self.picture is not None:
            data = base64.b64encode(self.picture.read_bytes()).decode()
            image = f'<img alt="{escape(self.caption or self.title)}" src="data:image/png;base64,{data}">'
            yield f"<figure>{image}{element('figcaption', self.caption) if self.caption else ''}</figure>"


@dataclass(frozen=True)
class Report:
    """What a script reports."""

    title: str
    section: str  # its name in RESULTS.md
    parts: Sequence[Part]
    summary: str = ""  # what was found, in one or two sentences; stands above everything

    def terminal(self) -> str:
        """The parts that the terminal shows, and the files of all pictures."""
        texts = [part._terminal() for part in self.parts if part.terminal and part.picture is None]
        pictures = "\n".join(str(part.picture) for part in self.parts if part.picture is not None)
        summary = textwrap.fill(self.summary, _WIDTH)
        return "\n\n".join(filter(None, [*chain.from_iterable(texts), summary, pictures]))

    def markdown(self, source: str) -> str:
        """The section of RESULTS.md, under a line on how it was made."""
        shown = [text for part in self.parts if part.page for text in part._markdown() if text]
        return "\n\n".join(filter(None, [f"## {self.title}", source, self.summary, *shown]))

    def html(self, source: str, *, configuration: str) -> bytes:
        """All parts as a page that needs no other file; how it was made stands at the end."""
        parts = [*self.parts, Part("How this was made", source, lines=configuration)]
        lead = f'<p class="lead">{escape(self.summary)}</p>' if self.summary else ""
        return document(self.title, "\n".join([lead, *(text for part in parts for text in part._html())]))

    def publish(self, folder: Path, page: Path | None, *, source: str) -> None:
        """Write report.html into the script's folder, the section into a page if there is one, and print the rest.

        ``source`` says how the results were made: the command, seeds and hardware.
        """
        path, text = folder / "report.html", self.html(source, configuration=(folder / "config.yaml").read_text())
        write_atomic(path, lambda file: file.write(text))
        if page is not None:
            update_section(page, self.section, self.markdown(source))
        print("", self.terminal(), "", path, *([] if page is None else [page]), sep="\n", flush=True)
