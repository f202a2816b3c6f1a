"""Differences between kinds of attention, read back out of the page of results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from experiments.files import UserError

__all__ = ["LEFT_OUT", "Comparison", "Section", "comparisons", "sections"]

LEFT_OUT = {
    "uniform minus learned": "compares learned weights with uniform ones in the same networks, not two kinds",
    r".+: beyond the first words": "compares with a text's first words, not with another attention",
    r"minus .+, by examples": "is a second interval of a difference whose interval over seeds is read",
    r"minus .+, by questions": "is a second interval of a difference whose interval over seeds is read",
}
"""Columns of differences that are not read, as patterns, and why."""

_NAMES = ("attention", "row", "scheme", "aligner")  # columns that name the row; those before it are conditions
_NUMBER = r"[+-](?:\d+(?:\.\d+)?|nan)"
_DIFFERENCE = rf"({_NUMBER})(?:(?:, 95 % interval)? \[({_NUMBER}), ({_NUMBER})\])?"
_CELL = re.compile(rf"\**{_DIFFERENCE}\**(?: to (.+))?")
_CLAIM = re.compile(r"(?:holds|does not hold|cannot be told): (.+)")
_CLAIMED = re.compile(rf"    (.+?) - (.+?): {_DIFFERENCE}(?: percentage points)?")


@dataclass(frozen=True)
class Section:
    """A section of the page: its name in the comments around it, its heading and that heading's anchor, its lines."""

    name: str
    title: str = ""
    anchor: str = ""
    lines: list[tuple[int, str]] = field(default_factory=list)  # with their numbers on the page

    @property
    def seeds(self) -> int | None:
        """How many seeds its runs have, the first number that is given; None where none is."""
        text = "\n".join(line for _, line in self.lines)
        found = re.search(r"seeds (\d+) to (\d+)|(\d+) seeds?\b", text)
        if found is None:
            return None
        return int(found[3]) if found[3] else int(found[2]) - int(found[1]) + 1


@dataclass(frozen=True)
class Comparison:
    """A difference between two rows, as the page gives it.

    Attributes:
        section: Where it stands.
        part: The heading inside the section, "" before the first one.
        data: The data set that the head of the column names, "" where it names none.
        condition: What the columns before the name of the row say, such as "10 labels per class".
        row, against: The two rows.
        metric: The number that differs, as its column is named; of a claim its text.
        mean: The difference, row minus against.
        interval: Its 95 % interval; None where the page gives none.
        digits: How many the page gives behind the point.
        over: What the interval is taken over: seeds (Student's t), or resampled sentences.
    """

    section: Section
    part: str
    data: str
    condition: str
    row: str
    against: str
    metric: str
    mean: float
    interval: tuple[float, float] | None
    digits: int
    over: Literal["seeds", "sentences"] = "seeds"


def sections(page: str) -> list[Section]:
    """The sections of the page; of those with the same title the last one, which was added last.

    Raises:
        UserError: A section has no end.
    """
    found, anchors, current, fenced = dict[str, Section](), Counter[str](), None, False
    for number, line in enumerate(page.splitlines(), 1):
        fenced ^= line.startswith("```")
        heading = None if fenced else re.fullmatch(r"#{1,3} (.+)", line)
        if begin := re.fullmatch(r"<!-- begin (.+) -->", line):
            current = Section(begin[1])
        elif current is not None and line == f"<!-- end {current.name} -->":
            title = current.title or current.name
            found.pop(title, None)  # the newer one stands where it was added
            found[title], current = current, None
        elif heading is not None:
            slug = re.sub(r"[^\w\- ]", "", heading[1].strip().lower().replace(" ", "-"))
            anchor = f"{slug}-{anchors[slug]}" if anchors[slug] else slug
            anchors[slug] += 1
            if current is not None and line.startswith("## "):
                current = Section(current.name, heading[1], anchor, current.lines)
        if current is not None:
            current.lines.append((number, line))
    if current is not None:
        raise UserError(f"section {current.name} has no line '<!-- end {current.name} -->'; put it back")
    return list(found.values())


def comparisons(section: Section) -> Iterator[Comparison]:
    """All differences of a section, in its tables and claims.

    Raises:
        UserError: A line of a table is broken, or there is a difference in a column that is not known; it names both.
    """
    part, claim, table = "", "", list[tuple[int, list[str]]]()
    for number, line in [*section.lines, (0, "")]:
        if line.startswith("|"):
            table.append((number, _cells(number, line)))
            continue
        if table:
            yield from _of_table(section, part, table)
            table = []
        if line.startswith("### "):
            part = line.removeprefix("### ")
        elif verdict := _CLAIM.fullmatch(line):
            claim = verdict[1]
        elif claim and (found := _CLAIMED.fullmatch(line)):
            yield _of_claim(section, part, claim, found)


def _cells(number: int, line: str) -> list[str]:
    if not line.endswith("|"):
        raise UserError(f"line {number} begins like one of a table and does not end with '|'; write the section again")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _of_table(section: Section, part: str, table: Sequence[tuple[int, list[str]]]) -> Iterator[Comparison]:
    (first, head), *body = table
    if not body or set("".join(body[0][1])) != {"-"}:
        raise UserError(f"line {first} is the head of a table without a line of dashes below; write the section again")
    columns = {place: column for place, name in enumerate(head) if (column := _column(head, place, name))}
    names = [place for place, name in enumerate(head) if name in _NAMES]
    for number, cells in body[1:]:
        if len(cells) != len(head):
            raise UserError(f"line {number} has {len(cells)} cells, expected {len(head)}; write the section again")
        for place, cell in enumerate(cells):
            found = _CELL.fullmatch(cell)
            known = place in columns or any(re.fullmatch(pattern, head[place]) for pattern in LEFT_OUT)
            if found and found[2] and not (known and names):
                raise UserError(f"line {number} has a difference in a column that is not known, '{head[place]}'")
            if place in columns and cell not in ("", "-"):
                if found is None:
                    raise UserError(f"line {number}: '{cell}' is no difference, in the column '{head[place]}'")
                row = dict(zip(head, cells, strict=True))
                condition = ", ".join(f"{row[name]} {name}" for name in head[: names[0]])
                yield _of_cell(section, part, columns[place], row[head[names[0]]], row, condition, found)


def _column(head: Sequence[str], place: int, name: str) -> dict[str, str] | None:
    """What a column of differences compares: metric, data set and the other row; None for any other column."""
    if any(re.fullmatch(pattern, name) for pattern in LEFT_OUT):
        return None
    if found := re.fullmatch(r"(.+): difference", name):
        return {"metric": found[1]}
    if found := re.fullmatch(r"(?:minus (.+?)|difference) \((.+)\)", name):
        main = next((one for one in head if one.startswith(f"{found[2]} ")), f"{found[2]} ")
        return {"metric": main.removeprefix(f"{found[2]} "), "data": found[2], "against": found[1] or ""}
    if found := re.fullmatch(r"minus (.+), by seeds", name):
        return {"metric": head[place - 1], "against": found[1]}
    if found := re.fullmatch(r"(.+) minus (.+)", name):
        return {"metric": found[1], "against": found[2]}
    if found := re.fullmatch(r"- (.+)", name):
        return {"metric": "AER", "against": found[1], "over": "sentences"}
    return None


def _of_cell(
    section: Section, part: str, column: Mapping[str, str], name: str, row: Mapping[str, str], condition: str,
    found: re.Match[str],
) -> Comparison:  # fmt: skip
    against = found[4] or column.get("against") or row.get("compared with") or "soft"
    over: Literal["seeds", "sentences"] = "sentences" if column.get("over") == "sentences" else "seeds"
    numbers, metric = _numbers(found[1], found[2], found[3]), column["metric"]
    if over == "sentences" and ": " in part:  # the same differences for several ways of linking
        metric = f"{metric}, {part.partition(': ')[2]}"
    return Comparison(section, part, column.get("data", ""), condition, name, against, metric, *numbers, over)


def _of_claim(section: Section, part: str, claim: str, found: re.Match[str]) -> Comparison:
    """A line below a claim; what is soft attention minus another kind is turned round."""
    row, (against, _, condition) = found[1], found[2].partition(", ")
    mean, interval, digits = _numbers(*found.groups()[2:5])
    if row == "soft":
        row, against, mean = against, row, -mean
        interval = None if interval is None else (-interval[1], -interval[0])
    return Comparison(section, part, "", condition, row, against, claim, mean, interval, digits)


def _numbers(mean: str, low: str | None, high: str | None) -> tuple[float, tuple[float, float] | None, int]:
    """Mean, interval and digits; a number that is none (of a training that diverged) leaves no interval."""
    interval = None if low is None or high is None or "nan" in low + high else (float(low), float(high))
    return float(mean), interval, len(mean.partition(".")[2])
