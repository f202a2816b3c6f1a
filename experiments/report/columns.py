"""Columns of tables on several trainings: means over seeds, and differences between rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.report.statistics import Better, Difference, Estimate, paired_difference, summarize

Cell = Estimate | Difference | str | float
Row = dict[str, Any]  # cells of a table, by the heads of the columns
Runs = Sequence[Mapping[str, float]]  # metrics of a row, one entry a seed


@dataclass(frozen=True)
class Column:
    """A number of each training, shown as mean and standard deviation over seeds."""

    name: str  # head of the column
    metric: str  # name in metrics.json
    digits: int = 3  # behind the point
    factor: float = 1.0
    spread: bool = True  # not shown of what is the same for all seeds
    better: Better | None = None  # which numbers are good; None where neither are

    def values(self, runs: Runs) -> list[float]:
        """One number a seed; seeds without the metric are left out."""
        return [self.factor * found[self.metric] for found in runs if self.metric in found]

    def cell(self, runs: Runs, *, error: bool = False) -> Estimate | str:
        """Mean ± standard deviation, with the standard error in parentheses if asked for; "-" where there is none."""
        values = self.values(runs)
        if not values:
            return "-"
        found = summarize(values, self.digits)
        return replace(found, spread=found.spread if self.spread else math.nan, with_error=error)

    def difference(self, runs: Runs, others: Runs, against: str, *, other: Column | None = None) -> Difference:
        """Difference to another row, whose name is ``against`` and whose number may be in an ``other`` metric.

        It is taken seed by seed.

        Raises:
            ValueError: The rows have different numbers of seeds with the metric, or none.
        """
        found = paired_difference(self.values(runs), (other or self).values(others))
        return replace(found, digits=self.digits, metric=self.name, against=against, better=self.better)


def columns_of(runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Column]:
    """The columns that some row has a number for."""
    return [column for column in columns if any(column.values(found) for found in runs.values())]


def summary_rows(head: str, runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Row]:
    """A table with one row for each entry of ``runs``, named in the column ``head``; empty columns are left out."""
    shown = columns_of(runs, columns)
    return [{head: row} | {column.name: column.cell(found) for column in shown} for row, found in runs.items()]
