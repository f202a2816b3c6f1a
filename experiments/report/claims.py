"""A claim about differences between rows, checked against the runs; it may well not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from experiments.report.report import Part
from experiments.report.statistics import Difference

Verdict = Literal["holds", "does not hold", "cannot be told"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """That some mean differences over seeds, by what they are, are all above zero, or all below it.

    Attributes:
        text: The claim, in a sentence without a full stop.
        differences: What is said to be above zero or below it.
        expected: The side of zero on which the claim wants them.
        ours: Whether it is a claim of ours, and none of a paper.
        percent: Whether they are percentage points.
    """

    text: str
    differences: Mapping[str, Difference]
    expected: Literal["above", "below"] = "above"
    ours: bool = False
    percent: bool = False

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


def claims_part(title: str, claims: Sequence[Claim], *, note: str = "") -> Part:
    """The part of a report with some claims, one at least, which all want their differences on the same side of zero.

    Args:
        title: Its heading.
        claims: The claims.
        note: What else is to be said of the numbers, in whole sentences.
    """
    (side,) = {claim.expected for claim in claims}
    text = (
        f"Mean differences over the seeds with 95 % confidence intervals. A claim holds where all intervals are {side} "
        f"0, it does not hold where one is not {side} 0 at all, and else it cannot be told. {note}"
    )
    rows = [
        {"claim": claim.text, "difference": name, "number": found, "verdict": claim.verdict}
        for claim in claims
        for name, found in claim.differences.items()
    ]
    return Part(title, text.rstrip(), rows, labels=2, lines="\n".join(map(str, claims)))
