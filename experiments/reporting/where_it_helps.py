"""The page that says where Bayesian attention helps; every word of it follows from the numbers in RESULTS.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scipy import stats

from experiments.files import UserError, read_text, write_atomic
from experiments.reporting.comparisons import LEFT_OUT, Comparison, Section, comparisons, sections
from experiments.reporting.config import WhereItHelps
from experiments.reporting.meanings import (
    FAMILIES,
    GROUPS,
    QUESTIONS,
    REPEATED_CLAIMS,
    ROWS,
    Meaning,
    Task,
    group_of,
    meaning_of,
    task_of,
)
from experiments.reporting.tables import markdown_table

__all__ = ["Finding", "page_of", "run"]

VERDICTS = ("better", "worse", "cannot be told")
_COMMAND = "python -m experiments.where_it_helps"
_HEAD = f"""# Where it helps

Where does Bayesian attention help, where does it not, and where can nothing be told? `{_COMMAND}`
writes this page out of the differences in [All tables and studies](all_results.md). No sentence about a result is
written by hand, and a test fails where this page is older than those tables.

A row is *better* or *worse* if the whole interval of the difference lies on one side of zero, and else it *cannot be
told*. The intervals over seeds are Student's t. We widen them by Bonferroni's correction for the number of differences
that the section has, which stands beside them, and by the rounding of the numbers. The intervals over resampled test
sentences cannot be widened so; these are **not corrected**, and a dash stands beside them. A difference that cannot be
told is not shown to be small: with three seeds and many differences, the corrected intervals are wide.
"""


@dataclass(frozen=True)
class Finding:
    """A comparison with what it means."""

    comparison: Comparison
    given: tuple[float, float]  # its interval on the page
    task: Task
    meaning: Meaning
    group: str
    tests: int  # differences over seeds in the section

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that decides: over seeds the corrected one.

        Raises:
            UserError: The section does not say how many seeds it has.
        """
        one, (low, high) = self.comparison, self.given
        if one.over != "seeds":
            return low, high
        if one.section.seeds is None or one.section.seeds < 2:
            raise UserError(f"section {one.section.name} has intervals over seeds, and does not say how many there are")
        quantile, wider = stats.t(one.section.seeds - 1).ppf([0.975, 1 - 0.025 / self.tests])
        rounding = 0.5 * 10**-one.digits
        half = ((high - low) / 2 + rounding) * wider / quantile + rounding
        return one.mean - half, one.mean + half

    @property
    def verdict(self) -> str:
        """One of the verdicts."""
        return self.verdict_by(self.interval)

    def verdict_by(self, interval: tuple[float, float]) -> str:
        """The verdict that an interval gives."""
        low, high = interval
        if low <= 0 <= high:
            return "cannot be told"
        return "better" if (low > 0) == (self.meaning.better == "higher") else "worse"

    @property
    def question(self) -> str:
        """The question that the comparison is listed under: the metric's own, else its section's."""
        asked, own = self.task.question, self.meaning.question
        if own and (asked == "accuracy" or own != "calibration"):
            return own
        return "noise" if asked == "accuracy" and "noise" in self.meaning.condition else asked

    @property
    def where(self) -> str:
        """Data set and condition."""
        one = self.comparison
        data = one.data or self.task.data or one.part
        return ", ".join(filter(None, (data, one.condition, self.meaning.condition)))

    def cells(self) -> dict[str, str]:
        """The row of a table."""
        one, seeds = self.comparison, self.comparison.over == "seeds"
        return {
            "task": self.task.name,
            "data": self.where,
            "attention": ROWS.get(one.row, one.row),
            "minus": ROWS.get(one.against, one.against),
            "number": f"{self.meaning.name} ({self.meaning.better} is better)",
            "difference [95 %]": f"{one.mean:+.{one.digits}f} {_brackets(self.given, one.digits)}",
            "corrected": f"{_brackets(self.interval, one.digits)} for {self.tests}" if seeds else "-",
            "seeds": str(one.section.seeds) if seeds else "-",
            "verdict": self.verdict,
            "from": f"[{one.section.name}](all_results.md#{one.section.anchor})",
        }


def _brackets(interval: tuple[float, float], digits: int) -> str:
    return f"[{interval[0]:+.{digits}f}, {interval[1]:+.{digits}f}]"


def run(config: WhereItHelps) -> None:
    """Write the page, or check that it is the one that the results give.

    Raises:
        UserError: The results cannot be read or understood, or with ``check`` the page is another one.
    """
    results = read_text(config.results, "choose another --results")
    try:
        page = page_of(results)
    except UserError as error:
        raise UserError(f"{config.results}: {error}") from error
    if not config.check:
        write_atomic(config.out, lambda file: file.write(page.encode()))
        print(config.out)
    elif not config.out.is_file() or read_text(config.out, "write it again") != page:
        raise UserError(f"{config.out} is older than {config.results}; run `{_COMMAND}` and commit the page")


def page_of(results: str) -> str:
    """The page, out of that of the results.

    Raises:
        UserError: A section is broken, or has a metric, a kind of attention or a task that is not known.
    """
    found, unread = list[Finding](), list[str]()
    for section in sections(results):
        found += _findings(section, unread)
    # what stands in two sections, which read the same runs, counts once
    found = list({tuple(one.cells().values())[:6]: one for one in found}.values())
    parts = [_HEAD, "## In short", *(_in_short(family, found) for family in FAMILIES)]
    for question, title in QUESTIONS.items():
        rows = [one.cells() for one in found if one.question == question]
        parts += [f"## {title}", markdown_table(rows) if rows else "No section has a difference with an interval yet."]
    columns = "\n".join(
        f"* A column *{pattern.replace('.+', '...')}* {reason}." for pattern, reason in LEFT_OUT.items()
    )
    parts += ["## Left out", "\n".join([*unread, columns])]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _findings(section: Section, unread: list[str]) -> Iterator[Finding]:
    """What a section finds; a line on what it leaves out is added to ``unread``."""
    if section.name.endswith("-ablations"):
        unread.append(f"* Section {section.name} changes one option at a time, which makes no other kind of attention.")
        return
    task = task_of(section.name)
    every = [one for one in comparisons(section) if one.metric not in REPEATED_CLAIMS]
    if not every:
        unread += [f"* Section {section.name} has no differences."] * (task is not None)
        return
    if task is None:
        raise UserError(f"section {section.name} has differences, and no task is known for it; add one to TASKS")
    with_interval = [(one, one.interval) for one in every if one.interval is not None]
    reasons = Counter({"without an interval": len(every) - len(with_interval)})
    for one, interval in with_interval:
        meaning, group = meaning_of(one.metric), group_of(one)
        if meaning.better is None:
            reasons[f"in {meaning.name}, of which neither more nor less is better"] += 1
        elif not group:
            reasons["between rows that have the same kind of attention"] += 1
        else:
            tests = sum(other.over == "seeds" for other, _ in with_interval)
            yield Finding(one, interval, task, meaning, group, tests)
    counts = [f"{count} {reason}" for reason, count in reasons.items() if count]
    unread += [f"* Section {section.name}: differences {', '.join(counts)}."] * bool(counts)


def _in_short(family: str, found: Sequence[Finding]) -> str:
    """A paragraph on the tasks of a family: how many comparisons have which verdict, and which can be told."""
    ours = [one for one in found if one.task.family == family]
    texts = [f"**{family.capitalize()}.** {_counts('Comparisons', ours)}"]
    for group in filter(None, GROUPS):
        some = [one for one in ours if one.group == group]
        texts += [_counts(group.capitalize(), some)] * bool(some)
    uncorrected = Counter(one.verdict_by(one.given) for one in ours)
    texts.append(f"Not corrected, {uncorrected['better']} would be better and {uncorrected['worse']} worse.")
    for verdict in VERDICTS[:2]:
        told = [
            f"{one.comparison.row} than {one.comparison.against} ({one.where}: {one.meaning.name})"
            for one in ours
            if one.verdict == verdict
        ]
        texts += [f"{verdict.capitalize()}: {'; '.join(told)}."] * bool(told)
    return " ".join(texts)


def _counts(name: str, found: Sequence[Finding]) -> str:
    counts = Counter(one.verdict for one in found)
    return f"{name}: {len(found)}, of which {', '.join(f'{counts[verdict]} {verdict}' for verdict in VERDICTS)}."
