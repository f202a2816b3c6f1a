"""The pages that are made of results/: where Bayesian attention helps, and the tables of every study."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy import stats

from experiments.files import write_text
from experiments.report.paper_tables import PAGES as PAPER_PAGES
from experiments.report.paper_tables import filled
from experiments.report.report import RESULTS, markdown_table, results_in
from experiments.report.statistics import Difference

PAGE = RESULTS.parents[1] / "docs" / "where_it_helps.md"
VERDICTS = ("better", "worse", "cannot be told")
NO_ATTENTION = ("MC dropout", "question only", "soft, in noise")  # rows that differ in something else than attention
_HEAD = """# Where it helps

**In most tasks there is no clear difference from soft attention.** Not counted here: the aligner without a network
([tables](results/alignments.md#aligners-without-a-network)), [learned widths](results/coverage.md), [causal
edges](results/graphs.md) and [bags](how_to/which_instance.md).

The table counts every difference of the studies of a task that has an interval and a better side;
`python -m experiments.pages` writes this page.

A difference is *better* or *worse* if its whole 95 % interval lies on one side of zero, else it *cannot be told*.
Intervals over seeds are Student's t, and are widened by Bonferroni's correction for the number of differences in their
study and by the rounding of the numbers; intervals over resampled test sentences are not corrected. What cannot be told
is not shown to be small: with three seeds and many differences the corrected intervals are wide. Trainings of 6 or 8
epochs (questions about digits, views, Multi30k, TED, pretraining) end while networks still improve: their differences
are of how fast something is learned.
"""


@dataclass(frozen=True)
class Finding:
    """A difference between two kinds of attention."""

    task: str  # with its family before a colon
    study: str  # name of the file in results/
    row: str  # the row that is compared with difference.against
    difference: Difference
    tests: int  # differences over seeds in the study

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that decides: over seeds the corrected one."""
        found = self.difference
        if found.over == "items":
            return found.low, found.high
        quantile, wider = stats.t(found.count - 1).ppf([0.975, 1 - 0.025 / self.tests])
        rounding = 0.5 * 10**-found.digits
        half = ((found.high - found.low) / 2 + rounding) * wider / quantile + rounding
        return found.mean - half, found.mean + half

    @property
    def verdict(self) -> str:
        """One of the verdicts."""
        low, high = self.interval
        if low <= 0 <= high:
            return "cannot be told"
        return "better" if (low > 0) == (self.difference.better == "higher") else "worse"

    @property
    def weight(self) -> float:
        """How far the interval is from zero, in its half widths: effects of several metrics in one order."""
        low, high = self.interval
        return abs(low + high) / (high - low)

    def __str__(self) -> str:
        found = self.difference
        where = f", {found.data}" if found.data else ""
        return f"{self.row} minus {found.against}: {found.metric} {found}{where} ({self.study})"


def findings(folder: Path = RESULTS) -> list[Finding]:
    """All differences between kinds of attention that have an interval and a better side."""
    found = {}
    for report, _ in results_in(folder):
        if not report.about:
            continue
        every = [one for part in report.parts for row in part.rows for one in _differences(row)]
        tests = sum(one.over == "seeds" for _, one in every)
        for row, one in every:
            if one.better is not None and not row.startswith(NO_ATTENTION):
                # what stands in two studies, which read the same runs, counts once
                found[row, one] = Finding(report.about, report.name, row, one, tests)
    return list(found.values())


def _differences(row: dict[str, object]) -> Iterator[tuple[str, Difference]]:
    """Differences with an interval in a row of a table, with its name; soft attention minus another is turned round."""
    # a claim names both rows
    name = next((str(row[head]) for head in ("attention", "row", "scheme", "aligner", "difference") if head in row), "")
    for cell in row.values():
        if isinstance(cell, Difference) and not math.isnan(cell.low):
            first = name.removesuffix(f" - {cell.against}")
            if first == "soft":
                first, low, high = cell.against, -cell.high, -cell.low
                cell = replace(cell, mean=-cell.mean, low=low, high=high, against="soft")
            yield first, cell


def page_of(found: Sequence[Finding]) -> str:
    """The page: a table with a row for each task, and below it what can be told."""
    rows, lists = [], list[str]()
    for task in sorted({one.task for one in found}):
        ours = [one for one in found if one.task == task]
        told = sorted((one for one in ours if one.verdict != "cannot be told"), key=lambda one: -one.weight)
        counts = {verdict: str(sum(one.verdict == verdict for one in ours)) for verdict in VERDICTS}
        rows.append({"task": task, **counts, "clearest difference": f"{told[0].verdict}: {told[0]}" if told else ""})
        if told:
            lists += [f"**{task}**", "\n".join(f"* {one.verdict}: {one}" for one in told)]
    folded = ["<details><summary>Every difference that can be told</summary>", *lists, "</details>"]
    return "\n\n".join([_HEAD.strip(), markdown_table(rows), *folded]) + "\n"


def write_tables(folder: Path) -> None:
    """Write a page for every study into a folder, leave alone those that have not changed, and remove all others."""
    pictures = os.path.relpath(RESULTS / "pictures", folder)
    pages = {report.name: report.markdown(source, pictures=pictures) for report, source in results_in(RESULTS)}
    entries = "\n".join(pages)
    pages["index"] = f"# Tables\n\n```{{toctree}}\n:maxdepth: 1\n\n{entries}\n```\n"
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text() != text:
            write_text(path, text)
    for path in folder.glob("*.md"):
        if path.stem not in pages:
            path.unlink()


def run(_: object) -> None:
    """Write all pages."""
    folder = PAGE.parent / "results" / "tables"
    write_text(PAGE, page_of(findings()))
    write_tables(folder)
    for path in PAPER_PAGES:
        write_text(path, filled(path.read_text()))
    print(PAGE, folder, *PAPER_PAGES, sep="\n")
