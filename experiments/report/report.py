"""What a script reports: one declaration for the terminal, for report.html, for results/ and for the site."""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain
from pathlib import Path

from experiments.files import write_atomic
from experiments.report.columns import Row
from experiments.report.tables import as_table, element, html_table, markdown_table, narrow
from pyro_attention.viewer import View, document, fragment

_WIDTH = 100  # letters in a line on the terminal


@dataclass(frozen=True)
class Part:
    """One part of a report: a heading, text, a table and a picture, each if there is one."""

    title: str = ""
    text: str = ""  # a paragraph, or several with an empty line between them
    rows: Sequence[Row] = ()
    labels: int = 1  # so many columns at the left name a row, the others measure it
    lines: str = ""  # shown as they are, on the terminal and in report.html in place of the table
    picture: Path | None = None  # a PNG file; the page links to it, and report.html holds it
    caption: str = ""  # of the picture; the title when omitted
    terminal: bool = True  # whether the terminal shows it; of a part with a picture it names the file, and no more
    published: bool = True  # whether results/ holds it; a picture then lies in the folder pictures/ there
    views: Sequence[View] = ()  # of report.html alone: alignments to look at; one part of a report at most has them

    def _terminal(self) -> Iterator[str]:
        body = self.lines or (as_table(self.rows) if self.rows else "")
        if body:
            yield f"{self.title}:\n{body}" if self.title else body
        yield from (textwrap.fill(paragraph, _WIDTH) for paragraph in self.text.split("\n\n"))

    def _markdown(self, pictures: str) -> Iterator[str]:
        if self.title:
            yield f"## {self.title}"
        yield self.text
        if self.rows:
            yield from map(markdown_table, narrow(self.rows, self.labels))
        elif self.lines:
            yield f"```text\n{self.lines}\n```"
        if self.picture is not None:
            yield f"![{self.caption or self.title}]({pictures}/{self.picture.name})"

    def _html(self) -> Iterator[str]:
        if self.title:
            yield element("h2", self.title)
        if self.rows and not self.lines:  # lines say the same
            yield html_table(self.rows)
        yield from (element("p", paragraph) for paragraph in self.text.split("\n\n") if paragraph)
        if self.lines:
            yield element("pre", self.lines)
        if self.views:
            yield fragment(self.views)
        if self.picture is not None:
            yield _figure(self.picture.read_bytes(), self.caption, self.title)


def _figure(png: bytes, caption: str, title: str = "") -> str:
    image = f'<img alt="{escape(caption or title)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
    return f"<figure>{image}{element('figcaption', caption) if caption else ''}</figure>"


@dataclass(frozen=True)
class Source:
    """How results were made.

    Attributes:
        command: What makes them again.
        seeds: How many, and which.
        hardware: Processor and system.
        versions: Of the packages that matter.
    """

    command: str
    seeds: str
    hardware: str
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"`{self.command}`; {'; '.join(filter(None, (self.seeds, self.hardware, versions)))}."


@dataclass(frozen=True)
class Report:
    """What a script reports."""

    title: str
    name: str  # of its file in results/
    parts: Sequence[Part]
    summary: str = ""  # what was found, in one or two sentences; stands above everything
    about: str = ""  # the task, under which its differences count in "Where it helps"

    def terminal(self) -> str:
        """The parts that the terminal shows, and the files of all pictures."""
        texts = [part._terminal() for part in self.parts if part.terminal and part.picture is None]
        pictures = "\n".join(str(part.picture) for part in self.parts if part.picture is not None)
        summary = textwrap.fill(self.summary, _WIDTH)
        return "\n\n".join(filter(None, [*chain.from_iterable(texts), summary, pictures]))

    def published(self) -> Report:
        """The report without the parts that stay in the folder of the script."""
        return replace(self, parts=[part for part in self.parts if part.published])

    def markdown(self, source: Source, *, pictures: str) -> str:
        """A page of the site; ``pictures`` is the way from there to the folder of the pictures."""
        shown = [text for part in self.parts for text in part._markdown(pictures) if text]
        return "\n\n".join(filter(None, [f"# {self.title}", str(source), self.summary, *shown])) + "\n"

    def html(self, source: Source, *, configuration: str) -> bytes:
        """All parts as a page that needs no other file; how it was made stands at the end."""
        parts = [*self.parts, Part("How this was made", str(source), lines=configuration)]
        lead = f'<p class="lead">{escape(self.summary)}</p>' if self.summary else ""
        return document(self.title, "\n".join([lead, *(text for part in parts for text in part._html())]))

    def write(self, folder: Path, source: Source) -> Path:
        """Write report.html into the script's folder and print what the terminal shows."""
        path, text = folder / "report.html", self.html(source, configuration=(folder / "config.yaml").read_text())
        write_atomic(path, lambda file: file.write(text))
        print("", self.terminal(), "", path, sep="\n", flush=True)
        return path
