"""What a script reports: one declaration for the terminal, for report.md, for results/ and for the site."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from experiments.files import read_json, reading, write_atomic, write_text
from experiments.report.statistics import Cell, Difference, Estimate, Row
from pyro_attention.viewer import View, document, fragment

_WIDTH = 100  # letters in a line on the terminal
RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Part:
    """One part of a report: a heading, text, a table and a picture, each if there is one."""

    title: str = ""
    text: str = ""  # a paragraph, or several with an empty line between them
    rows: Sequence[Row] = ()
    labels: int = 1  # so many columns at the left name a row, the others measure it
    lines: str = ""  # shown as they are, on the terminal in place of the table
    picture: Path | None = None  # a PNG file; the page links to it
    caption: str = ""  # of the picture; the title when omitted
    terminal: bool = True  # whether the terminal shows it; of a part with a picture it names the file, and no more
    published: bool = True  # whether results/ holds it; a picture then lies in the folder pictures/ there

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
            yield markdown_table(self.rows)
        elif self.lines:
            yield f"```text\n{self.lines}\n```"
        if self.picture is not None:
            yield f"![{self.caption or self.title}]({pictures}/{self.picture.name})"


@dataclass(frozen=True)
class Source:
    """How results were made."""

    command: str  # makes them again
    seeds: str  # how many, and which
    hardware: str  # processor and system
    versions: dict[str, str]  # of the packages that matter

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

    def write(self, folder: Path, source: Source) -> Path:
        """Write report.md into the script's folder and print what the terminal shows."""
        path, drawn = folder / "report.md", [part.picture.parent for part in self.parts if part.picture is not None]
        write_text(path, self.markdown(source, pictures=os.path.relpath(drawn[0], folder) if drawn else ""))
        print("", self.terminal(), "", path, sep="\n", flush=True)
        return path


# results/: every published number, one JSON file a study, with what made it


def source_of(folders: Sequence[Path], command: str, seeds: str = "") -> Source:
    """What made the runs in these folders, from their environment.json.

    Raises:
        UserError: A folder's environment.json is missing or damaged.
    """
    kinds, versions = dict[str, None](), dict[str, dict[str, None]]()
    for folder in folders:
        path, remedy = folder / "environment.json", "remove the folder, and the same command makes it again"
        record = read_json(path, remedy)
        with reading(path, "the environment of a run", remedy):
            device = record["device"] if record["device"] != "cpu" else f"{record['cpus']} CPU cores"
            kinds[f"{device}, {record['system']}"] = None
            for name in ("torch", "pyro-ppl"):
                versions.setdefault(name, {})[record["packages"][name]] = None
    return Source(command, seeds, "; ".join(kinds), {name: " and ".join(found) for name, found in versions.items()})


def write_results(folder: Path, report: Report, source: Source) -> Path:
    """Write the file of a report: its texts, and one long table with a row for each cell of its tables."""
    head = {"title": report.title, "about": report.about, "summary": report.summary, **asdict(source)}
    report = report.published()
    parts = [_part(part) for part in report.parts]
    rows = [row for number, part in enumerate(report.parts) for row in _long(number, part)]
    # one line a row, so that a change of a number is a change of a line
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    lines += [f'"{name}": {_lines(items)}' for name, items in (("parts", parts), ("rows", rows))]
    path = folder / f"{report.name}.json"
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def read_results(path: Path) -> tuple[Report, Source]:
    """The report of a file, and what made it."""
    found = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for number, part in enumerate(found["parts"]):
        long = [row for row in found["rows"] if row["part"] == number]
        picture = path.parent / "pictures" / part["picture"] if part["picture"] else None
        parts.append(Part(**part | {"picture": picture, "rows": _wide(long)}))
    source = Source(**{field.name: found[field.name] for field in fields(Source)})
    return Report(found["title"], path.stem, parts, found["summary"], found["about"]), source


def results_in(folder: Path) -> Iterator[tuple[Report, Source]]:
    """All reports of a folder, by name."""
    return map(read_results, sorted(folder.glob("*.json")))


def _part(part: Part) -> dict[str, Any]:
    texts = {name: getattr(part, name) for name in ("title", "text", "labels", "lines", "caption")}
    return texts | {"picture": part.picture.name if part.picture else ""}


def _long(number: int, part: Part) -> Iterator[dict[str, Any]]:
    for row in part.rows:
        labels = {name: str(label) for name, label in list(row.items())[: part.labels]}
        for column, cell in list(row.items())[part.labels :]:
            yield {"part": number, "labels": labels, "column": column, **_plain_cell(cell)}


def _wide(long: list[dict[str, Any]]) -> list[Row]:
    rows: dict[tuple[str, ...], Row] = {}
    for one in long:
        row = rows.setdefault(tuple(one["labels"].values()), dict(one["labels"]))
        row[one["column"]] = _read_cell({name: one[name] for name in one.keys() - {"part", "labels", "column"}})
    return list(rows.values())


def _plain_cell(cell: Cell) -> dict[str, Any]:
    if not isinstance(cell, Estimate | Difference):
        return {"text": str(cell)}
    defaults = {field.name: field.default for field in fields(cell)}
    # the metric tells that it is a difference
    found = {name: value for name, value in asdict(cell).items() if value != defaults[name] or name == "metric"}
    if isinstance(cell, Estimate) and cell.values:  # JSON has no NaN
        found["values"] = [None if math.isnan(value) else value for value in cell.values]
    return {name: value for name, value in found.items() if not (isinstance(value, float) and math.isnan(value))}


def _read_cell(plain: dict[str, Any]) -> Cell:
    if "text" in plain:
        return str(plain["text"])
    number = {"mean": math.nan, **plain}
    if "values" in number:
        number["values"] = tuple(math.nan if value is None else value for value in number["values"])
    return Difference(**{"low": math.nan, "high": math.nan, **number}) if "metric" in plain else Estimate(**number)


def _lines(items: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in items) + "\n]"


# claims about differences between rows, which may well not hold

Verdict = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """That some mean differences over seeds, by what they are, are all above zero, or all below it."""

    text: str  # the claim, in a sentence without a full stop
    differences: Mapping[str, Difference]  # what is said to be above zero or below it
    expected: Literal["above", "below"] = "above"  # the side of zero on which the claim wants them
    ours: bool = False  # whether it is a claim of ours, and none of a paper
    percent: bool = False  # whether they are percentage points

    @property
    def verdict(self) -> Verdict:
        """It holds if every confidence interval lies on its side, and does not if one lies on the other side."""
        ranges = [(found.low, found.high) for found in self.differences.values()]
        if self.expected == "below":
            ranges = [(-high, -low) for low, high in ranges]
        if all(low > 0 for low, _ in ranges):
            return "holds"
        return "does not hold" if any(high <= 0 for _, high in ranges) else "cannot be told"

    def __str__(self) -> str:
        unit = " percentage points" if self.percent else ""
        lines = (f"    {name}: {found}{unit}" for name, found in self.differences.items())
        return "\n".join([f"{self.verdict}: {self.text}", *lines])


def claims_part(title: str, claims: Sequence[Claim]) -> Part:
    """The part of a report with some claims, which all want their differences on the same side of zero."""
    (side,) = {claim.expected for claim in claims}
    text = (
        f"Mean differences over the seeds with 95 % confidence intervals. A claim holds where all intervals are {side} "
        f"0, it does not hold where one is not {side} 0 at all, and else it cannot be told."
    )
    rows = [
        {"claim": claim.text, "difference": name, "number": found, "verdict": claim.verdict}
        for claim in claims
        for name, found in claim.differences.items()
    ]
    return Part(title, text, rows, labels=2, lines="\n".join(map(str, claims)))


# tables of text


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a plain text table: text to the left, numbers to the right with four significant digits."""
    aligned = []
    for name in dict.fromkeys(name for row in rows for name in row):
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


def write_page(path: Path, views: Sequence[View], *, title: str, text: str) -> Path:
    """Write a page to look at attention with, in a browser, one file that needs no other."""
    lead = f'<p class="lead">{escape(text)}</p>'
    write_atomic(path, lambda file: file.write(document(title, lead + fragment(views))))
    return path
