"""Reports of scripts: one declaration for the terminal, for report.md, for results/ and for the site."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from experiments.files import read_json, reading, write_atomic, write_text
from experiments.report.statistics import Cell, Difference, Estimate, Row
from experiments.report.terminal import as_table, wrapped
from pyro_attention.viewer import View, document, fragment

RESULTS = Path(__file__).parents[1] / "results"
_LONG_TEXT = 100  # words of a text that a page of the site folds, so that its table is in view
_FOLDED = "Data, training, rows and columns"


@dataclass(frozen=True)
class Part:
    """One part of a report, with a heading, text, a table and a picture as far as it has them."""

    title: str = ""
    text: str = ""  # a paragraph, or several with an empty line between them
    rows: Sequence[Row] = ()
    labels: int = 1  # number of columns at the left that name a row; the rest measure it
    lines: str = ""  # text with line breaks, which takes the place of the table on the terminal
    picture: Path | None = None  # a PNG file, to which the page links
    caption: str = ""  # caption of the picture; the title when omitted
    terminal: bool = True  # whether the terminal shows the part; of a picture it shows the file name alone
    published: bool = True  # whether results/ holds the part; its picture is then in the folder pictures/ there

    def _terminal(self) -> Iterator[str]:
        body = wrapped(self.lines, indent="    ") if self.lines else as_table(self.rows) if self.rows else ""
        if body:
            yield f"{wrapped(self.title)}:\n{body}" if self.title else body
        yield from map(wrapped, self.text.split("\n\n"))

    def _markdown(self, pictures: str, *, fold: bool) -> Iterator[str]:
        if self.title:
            yield f"## {self.title}"
        long = len(self.text.split()) > _LONG_TEXT
        yield f"<details><summary>{_FOLDED}</summary>\n\n{self.text}\n\n</details>" if fold and long else self.text
        if self.rows:
            yield markdown_table(self.rows)
        elif self.lines:
            yield f"```text\n{self.lines}\n```"
        if self.picture is not None:
            yield f"![{self.caption or self.title}]({pictures}/{self.picture.name})"


@dataclass(frozen=True)
class Source:
    """Origin of results: command, seeds, hardware and versions."""

    command: str  # command line that repeats them
    seeds: str  # the seeds, or the number of threads
    hardware: str  # processor and system
    versions: dict[str, str]  # versions of torch and Pyro

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"`{self.command}`; {'; '.join(filter(None, (self.seeds, self.hardware, versions)))}."


@dataclass(frozen=True)
class Report:
    """Report of a script."""

    title: str
    name: str  # name of its file in results/
    parts: Sequence[Part]
    summary: str = ""  # the result in one or two sentences, above everything else
    about: str = ""  # task whose differences "Where it helps" counts; empty if they do not count

    def terminal(self) -> str:
        """Return the parts that the terminal shows, and the file names of all pictures."""
        texts = [part._terminal() for part in self.parts if part.terminal and part.picture is None]
        pictures = "\n".join(str(part.picture) for part in self.parts if part.picture is not None)
        return "\n\n".join(filter(None, [*chain.from_iterable(texts), wrapped(self.summary), pictures]))

    def published(self) -> Report:
        """Return the report without the parts that are not published."""
        return replace(self, parts=[part for part in self.parts if part.published])

    def markdown(self, source: Source, *, pictures: str, fold: bool = False) -> str:
        """Return a page.

        Args:
            source: Origin of the numbers.
            pictures: Relative path from the page to the folder of the pictures.
            fold: Whether long texts are folded, as on the site, until a reader opens them.
        """
        shown = [text for part in self.parts for text in part._markdown(pictures, fold=fold) if text]
        return "\n\n".join(filter(None, [f"# {self.title}", str(source), self.summary, *shown])) + "\n"

    def write(self, folder: Path, source: Source) -> Path:
        """Write report.md into the script's folder and print what the terminal shows."""
        path, drawn = folder / "report.md", [part.picture.parent for part in self.parts if part.picture is not None]
        write_text(path, self.markdown(source, pictures=os.path.relpath(drawn[0], folder) if drawn else ""))
        print("", self.terminal(), "", path, sep="\n", flush=True)
        return path


# results/: every published number, in a JSON file for each study, with its origin


def source_of(folders: Sequence[Path], command: str, seeds: str = "") -> Source:
    """Return the origin of the runs in these folders, from their environment.json.

    Raises:
        UserError: A folder's environment.json is missing or damaged.
    """
    kinds, versions = dict[str, None](), dict[str, dict[str, None]]()
    for folder in folders:
        path, remedy = folder / "environment.json", "put an intact copy there, or train this run again"
        record = read_json(path, remedy)
        with reading(path, "the environment of a run", remedy):
            device = record["device"] if record["device"] != "cpu" else f"{record['cpus']} CPU cores"
            kinds[f"{device}, {record['system']}"] = None
            for name in ("torch", "pyro-ppl"):
                versions.setdefault(name, {})[record["packages"][name]] = None
    return Source(command, seeds, "; ".join(kinds), {name: " and ".join(numbers) for name, numbers in versions.items()})


def write_results(folder: Path, report: Report, source: Source) -> Path:
    """Write the file of a report: its texts, and a long table with a row for each cell of its tables."""
    head = {"title": report.title, "about": report.about, "summary": report.summary, **asdict(source)}
    report = report.published()
    parts = [_part(part) for part in report.parts]
    rows = [row for number, part in enumerate(report.parts) for row in _long(number, part)]
    # a line for each row, so that a changed number is a changed line
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    lines += [f'"{name}": {_lines(items)}' for name, items in (("parts", parts), ("rows", rows))]
    path = folder / f"{report.name}.json"
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def publish(folder: Path | None, report: Report, source: Source) -> None:
    """Write the file of a report into a folder, and print where it is; without a folder say why there is none."""
    if folder is None:
        text = "This is a part of the study, or has other options, so it was not written to experiments/results."
        print(wrapped(f"{text} Use --results FOLDER to write it elsewhere."))
    else:
        print(write_results(folder, report, source))


def read_results(path: Path) -> tuple[Report, Source]:
    """Return the report of a file, and its origin."""
    record = json.loads(path.read_text(encoding="utf-8"))
    parts = []
    for part_number, part in enumerate(record["parts"]):
        cells_of_part = [row for row in record["rows"] if row["part"] == part_number]
        picture = path.parent / "pictures" / part["picture"] if part["picture"] else None
        parts.append(Part(**part | {"picture": picture, "rows": _wide(cells_of_part)}))
    source = Source(**{field.name: record[field.name] for field in fields(Source)})
    return Report(record["title"], path.stem, parts, record["summary"], record["about"]), source


def results_in(folder: Path) -> Iterator[tuple[Report, Source]]:
    """Return all reports of a folder with their origins, ordered by name."""
    return map(read_results, sorted(folder.glob("*.json")))


def _part(part: Part) -> dict[str, Any]:
    texts = {name: getattr(part, name) for name in ("title", "text", "labels", "lines", "caption")}
    return texts | {"picture": part.picture.name if part.picture else ""}


def _long(number: int, part: Part) -> Iterator[dict[str, Any]]:
    for row in part.rows:
        labels = {name: str(label) for name, label in list(row.items())[: part.labels]}
        for column, cell in list(row.items())[part.labels :]:
            yield {"part": number, "labels": labels, "column": column, **_plain_cell(cell)}


def _wide(cells: list[dict[str, Any]]) -> list[Row]:
    rows: dict[tuple[str, ...], Row] = {}
    for cell in cells:
        row = rows.setdefault(tuple(cell["labels"].values()), dict(cell["labels"]))
        row[cell["column"]] = _read_cell({name: cell[name] for name in cell.keys() - {"part", "labels", "column"}})
    return list(rows.values())


def _plain_cell(cell: Cell) -> dict[str, Any]:
    if not isinstance(cell, Estimate | Difference):
        return {"text": str(cell)}
    defaults = {field.name: field.default for field in fields(cell)}
    # a cell with a metric is a difference
    plain = {name: value for name, value in asdict(cell).items() if value != defaults[name] or name == "metric"}
    if isinstance(cell, Estimate) and cell.values:  # JSON has no NaN
        plain["values"] = [None if math.isnan(value) else value for value in cell.values]
    return {name: value for name, value in plain.items() if not (isinstance(value, float) and math.isnan(value))}


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

Verdict = Literal["holds", "does not hold", "no clear difference"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim that mean differences over seeds are all above zero, or all below it."""

    text: str  # the claim, as a sentence without a full stop
    differences: Mapping[str, Difference]  # the differences by their names
    expected: Literal["above", "below"] = "above"  # side of zero of the differences, if the claim holds
    beyond_paper: bool = False  # whether this project makes the claim, and no paper
    percent: bool = False  # whether the differences are percentage points

    @property
    def verdict(self) -> Verdict:
        """Verdict on the claim.

        It holds if every 95 % interval lies on the expected side of zero, and does not hold if one lies on the other.
        """
        ranges = [(difference.low, difference.high) for difference in self.differences.values()]
        if self.expected == "below":
            ranges = [(-high, -low) for low, high in ranges]
        if all(low > 0 for low, _ in ranges):
            return "holds"
        return "does not hold" if any(high <= 0 for _, high in ranges) else "no clear difference"

    def __str__(self) -> str:
        unit = " percentage points" if self.percent else ""
        lines = (f"    {name}: {difference}{unit}" for name, difference in self.differences.items())
        return "\n".join([f"{self.verdict}: {self.text}", *lines])


def claims_part(title: str, claims: Sequence[Claim]) -> Part:
    """Return the part of a report with claims, which all expect their differences on the same side of zero."""
    (side,) = {claim.expected for claim in claims}
    text = (
        f"Mean differences over the seeds with 95 % confidence intervals. A claim holds where all intervals are {side} "
        f"zero, and does not hold where a whole interval is on the other side. Otherwise there is no clear difference "
        f"(an interval contains zero)."
    )
    rows = [
        {"claim": claim.text, "difference": name, "number": difference, "verdict": claim.verdict}
        for claim in claims
        for name, difference in claim.differences.items()
    ]
    return Part(title, text, rows, labels=2, lines="\n".join(map(str, claims)))


# tables of Markdown


def _plain(text: str) -> str:
    """Escape text so that it neither ends a cell or a row, nor begins an element of HTML or a comment."""
    return " ".join(text.splitlines()).replace("|", r"\|").replace("<", "&lt;")


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a Markdown table with the columns of the first row; markup in a cell shows as text."""
    columns = list(rows[0])
    lines = [
        [_plain(str(cell)) for cell in line] for line in (columns, *([row[name] for name in columns] for row in rows))
    ]
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def write_page(path: Path, views: Sequence[View], *, title: str, text: str) -> Path:
    """Write a page that shows attention in a browser, as a single file that needs no other."""
    lead = f'<p class="lead">{escape(text)}</p>'
    write_atomic(path, lambda file: file.write(document(title, lead + fragment(views))))
    return path
