"""Means over seeds and differences between two rows, as numbers that know how they are written in a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
