"""Pages from the files of results/: where Bayesian attention helps, and the tables of every study."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scipy import stats

from experiments.files import write_text
from experiments.report.paper_tables import PAGES as PAPER_PAGES
from experiments.report.paper_tables import filled
from experiments.report.report import RESULTS, markdown_table, results_in
from experiments.report.statistics import Difference

PAGE = RESULTS.parents[1] / "docs" / "where_it_helps.md"
UNCLEAR = "no clear difference"
VERDICTS = ("better", "worse", UNCLEAR)
NO_ATTENTION = ("MC dropout", "question only", "soft, in noise")  # rows that differ in something else than attention
_HEAD = """# Where it helps

**In most tasks there is no clear difference from soft attention.** Not counted here: the aligner without a network
([tables](results/alignments.md#aligners-without-a-network)), [learned widths](results/coverage.md), [causal
edges](results/reasons.md) and [bags](how_to/which_instance.md).

The table counts every difference of the studies of a task that has an interval and a better side;
`python -m experiments.pages` writes this page.

A difference is *better* or *worse* if its whole 95 % interval lies on one side of zero. Otherwise there is *no clear
difference* (the 95 % interval contains zero).

* Intervals over seeds are Student's t. They are widened by Bonferroni's correction for the number of differences in
  their study and by the rounding of the numbers. Intervals over resampled test sentences are not corrected.
* A difference that is not clear is not shown to be small: with three seeds and many differences the corrected
  intervals are wide.
* Some trainings end while networks still improve, so that their differences compare speeds of learning: those of 6 or
  8 epochs (Multi30k and TED from scratch, pretraining; questions about digits with a learned width, or with a share of
  the training questions), and those of 20 epochs of one alignment a question about digits. The 16 epochs of soft
  attention that all schemes of Multi30k go on from had not stopped it.
"""


@dataclass(frozen=True)
class Finding:
    """A difference between two kinds of attention."""

    task: str  # task, with its family before a colon
    study: str  # title of the study
    row: str  # row that is compared with difference.against
    difference: Difference
    tests: int  # number of differences over seeds in the study

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean difference, corrected for the number of tests where it is over seeds."""
        difference = self.difference
        if difference.over == "items":
            return difference.low, difference.high
        quantile, wider = stats.t(difference.count - 1).ppf([0.975, 1 - 0.025 / self.tests])
        rounding = 0.5 * 10**-difference.digits
        half = ((difference.high - difference.low) / 2 + rounding) * wider / quantile + rounding
        return difference.mean - half, difference.mean + half

    @property
    def verdict(self) -> str:
        """Verdict on the difference, one of ``VERDICTS``."""
        low, high = self.interval
        if low <= 0 <= high:
            return UNCLEAR
        return "better" if (low > 0) == (self.difference.better == "higher") else "worse"

    @property
    def weight(self) -> float:
        """Distance of the mean from zero in half widths of the interval, which orders effects of several metrics."""
        low, high = self.interval
        return abs(low + high) / (high - low)

    def __str__(self) -> str:
        difference = self.difference
        where = f", {difference.data}" if difference.data else ""
        return f"{self.row} minus {difference.against}: {difference.metric} {difference}{where} ({self.study})"


def findings(folder: Path = RESULTS) -> list[Finding]:
    """Return all differences between kinds of attention that have an interval and a better side."""
    findings_by_row = {}
    for report, _ in results_in(folder):
        if not report.about:
            continue
        differences = _distinct(
            difference for part in report.parts for row in part.rows for difference in _differences(row)
        )
        tests = sum(difference.over == "seeds" for _, difference in differences)
        for row, difference in differences:
            if difference.better is not None and not row.startswith(NO_ATTENTION):
                # a difference in two studies, which read the same runs, counts once, though one may have more tests
                findings_by_row[row, replace(difference, bold=False)] = Finding(
                    report.about, report.title, row, difference, tests
                )
    return list(findings_by_row.values())


def _distinct(differences: Iterable[tuple[str, Difference]]) -> list[tuple[str, Difference]]:
    """Leave out differences that a report repeats with other digits, as a claim repeats one of the table."""
    distinct = list[tuple[str, Difference]]()
    for row, difference in differences:
        if not any(row == other_row and _repeats(difference, other) for other_row, other in distinct):
            distinct.append((row, difference))
    return distinct


def _repeats(difference: Difference, other: Difference) -> bool:
    """Return whether two differences of a row, shown with other digits, are one number."""
    if difference.digits == other.digits or any(
        getattr(difference, name) != getattr(other, name) for name in ("metric", "against", "data", "over")
    ):
        return False
    unit = 10.0 ** -min(difference.digits, other.digits)  # both are rounded
    return all(abs(getattr(difference, end) - getattr(other, end)) < unit for end in ("mean", "low", "high"))


def _differences(row: dict[str, object]) -> Iterator[tuple[str, Difference]]:
    """Yield the differences of a row of a table that have an interval, with the name of the row.

    Soft attention minus another kind becomes that kind minus soft attention.
    """
    # a claim names both rows
    name = next((str(row[head]) for head in ("attention", "row", "scheme", "aligner", "difference") if head in row), "")
    for cell in row.values():
        if isinstance(cell, Difference) and not math.isnan(cell.low):
            first = name.removesuffix(f" - {cell.against}")
            if first == "soft":
                first, low, high = cell.against, -cell.high, -cell.low
                cell = replace(cell, mean=-cell.mean, low=low, high=high, against="soft")
            yield first, cell


def page_of(all_findings: Sequence[Finding]) -> str:
    """Return the page: a table with a row for each task, and below it every clear difference."""
    rows, details = [], list[str]()
    for task in sorted({finding.task for finding in all_findings}):
        of_task = [finding for finding in all_findings if finding.task == task]
        clear = sorted(
            (finding for finding in of_task if finding.verdict != UNCLEAR), key=lambda finding: -finding.weight
        )
        counts = {verdict: str(sum(finding.verdict == verdict for finding in of_task)) for verdict in VERDICTS}
        rows.append({"task": task, **counts, "clearest difference": f"{clear[0].verdict}: {clear[0]}" if clear else ""})
        if clear:
            details += [f"**{task}**", "\n".join(f"* {finding.verdict}: {finding}" for finding in clear)]
    folded = ["<details><summary>Every clear difference</summary>", *details, "</details>"]
    return "\n\n".join([_HEAD.strip(), markdown_table(rows), *folded]) + "\n"


def write_tables(folder: Path) -> None:
    """Write a page for every study into a folder, leave unchanged pages as they are, and remove all other pages."""
    pictures = os.path.relpath(RESULTS / "pictures", folder)
    studies = list(results_in(RESULTS))
    pages = {report.name: report.markdown(source, pictures=pictures, fold=True) for report, source in studies}
    # several tables have one title, and their commands tell them apart
    rows = [f"| [{report.title}]({report.name}.md) | `{source.command}` |" for report, source in studies]
    names = "\n".join(pages)
    table = "\n".join(["| table | command |", "|---|---|", *rows])
    pages["index"] = f"# Tables\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
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
