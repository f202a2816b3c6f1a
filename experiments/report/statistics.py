"""Means over seeds and differences between two rows, as numbers that know how they are written, and their columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, with its spread over them or its own interval over test items."""

    mean: float
    spread: float = math.nan  # standard deviation (unbiased variance); NaN where there is none
    count: int = 1  # seeds
    digits: int = 2  # behind the point
    with_error: bool = False  # show the standard error of the mean
    low: float = math.nan  # ends of a 95 % interval over resampled test items
    high: float = math.nan

    @property
    def standard_error(self) -> float:
        """Of the mean."""
        return self.spread / math.sqrt(self.count)

    def __str__(self) -> str:
        if not math.isnan(self.low):
            return f"{self.mean:.{self.digits}f} [{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"
        spread = "" if math.isnan(self.spread) else f" ± {self.spread:.{self.digits}f}"
        error = f" ({self.standard_error:.{self.digits}f})" if spread and self.with_error else ""
        return f"{self.mean:.{self.digits}f}{spread}{error}"


@dataclass(frozen=True)
class Difference:
    """Mean difference of a number between two rows, with its 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float = math.nan  # of the paired two-sided t-test, not corrected for the number of comparisons
    count: int = 1  # seeds
    digits: int = 2  # behind the point
    metric: str = ""  # the number
    against: str = ""  # the row that is taken away
    data: str = ""  # where the numbers were measured, if the rows have several places
    better: Better | None = None  # which numbers are good; None where neither are
    over: Literal["seeds", "items"] = "seeds"  # what the interval is taken over: seeds, or resampled test items
    bold: bool = False  # distinguishable from zero after the correction that the table names

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:+.{self.digits}f}, {self.high:+.{self.digits}f}]"
        mark = "**" if self.bold else ""
        return f"{mark}{self.mean:+.{self.digits}f}{interval}{mark}"


def summarize(values: Sequence[float], digits: int = 2) -> Estimate:
    """Mean and spread.

    Raises:
        ValueError: No values.
    """
    if not values:
        raise ValueError("no values to summarize, expected one a seed")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(np.mean(values)), spread, len(values), digits)


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Mean of ``values - baseline``, of the same seeds in the same order, with Student's 95 % confidence interval.

    Raises:
        ValueError: Different numbers of seeds, or none.
    """
    if len(values) != len(baseline) or not values:
        raise ValueError(f"{len(values)} values and {len(baseline)} of the baseline; expected as many, one a seed")
    differences = np.subtract(values, baseline)
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, math.nan, math.nan)
    if np.ptp(differences) == 0:  # the interval is a point; scipy would divide by zero
        return Difference(mean, mean, mean, float(mean == 0), len(values))
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return Difference(mean, float(interval.low), float(interval.high), float(test.pvalue), len(values))


# columns of tables on several trainings

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
