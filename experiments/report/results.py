"""results/: every published number, one JSON file a study, with what made it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from experiments.files import read_json, reading, write_text
from experiments.report.columns import Cell, Row
from experiments.report.report import Part, Report, Source
from experiments.report.statistics import Difference, Estimate

RESULTS = Path(__file__).parents[1] / "results"


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
            yield {"part": number, "labels": labels, "column": column, **_plain(cell)}


def _wide(long: list[dict[str, Any]]) -> list[Row]:
    rows: dict[tuple[str, ...], Row] = {}
    for one in long:
        row = rows.setdefault(tuple(one["labels"].values()), dict(one["labels"]))
        row[one["column"]] = _cell({name: one[name] for name in one.keys() - {"part", "labels", "column"}})
    return list(rows.values())


def _plain(cell: Cell) -> dict[str, Any]:
    if not isinstance(cell, Estimate | Difference):
        return {"text": str(cell)}
    defaults = {field.name: field.default for field in fields(cell)}
    # the metric tells that it is a difference
    found = {name: value for name, value in asdict(cell).items() if value != defaults[name] or name == "metric"}
    return {name: value for name, value in found.items() if not (isinstance(value, float) and math.isnan(value))}


def _cell(plain: dict[str, Any]) -> Cell:
    if "text" in plain:
        return str(plain["text"])
    number = {"mean": math.nan, **plain}
    return Difference(**{"low": math.nan, "high": math.nan, **number}) if "metric" in plain else Estimate(**number)


def _lines(items: list[dict[str, Any]]) -> str:
    return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in items) + "\n]"
