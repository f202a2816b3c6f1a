"""Means over seeds, differences between two rows that share their seeds, and how both are written in tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

__all__ = ["Difference", "Summary", "paired_difference", "summarise"]


@dataclass(frozen=True)
class Summary:
    """Mean over seeds."""

    mean: float
    spread: float  # standard deviation (unbiased variance); NaN for one seed
    standard_error: float  # of the mean
    count: int  # seeds

    def text(self, digits: int = 2, *, spread: bool = True, error: bool = False) -> str:
        """Mean ± standard deviation, with the standard error in parentheses if asked for; of one seed the mean alone.

        Example:
            >>> summarise([1.0, 2.0, 3.0]).text(), summarise([1.0]).text()
            ('2.00 ± 1.00', '1.00')
        """
        mean = f"{self.mean:.{digits}f}"
        if self.count == 1 or not spread:
            return mean
        return f"{mean} ± {self.spread:.{digits}f}" + (f" ({self.standard_error:.{digits}f})" if error else "")


@dataclass(frozen=True)
class Difference:
    """Mean difference between two rows, seed by seed, with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    p_value: float  # of the paired two-sided t-test, not corrected for the number of comparisons

    def text(self, digits: int = 2) -> str:
        """Mean with its sign, and the interval; of one seed the mean alone.

        Example:
            >>> paired_difference([2.0, 3.0, 4.0], [1.0, 1.0, 1.0]).text()
            '+2.00 [-0.48, +4.48]'
        """
        interval = "" if math.isnan(self.low) else f" [{self.low:+.{digits}f}, {self.high:+.{digits}f}]"
        return f"{self.mean:+.{digits}f}{interval}"


def summarise(values: Sequence[float]) -> Summary:
    """Mean, spread and standard error.

    Raises:
        ValueError: No values.

    Example:
        >>> summarise([1.0, 2.0, 3.0])
        Summary(mean=2.0, spread=1.0, standard_error=0.577..., count=3)
    """
    if not values:
        raise ValueError("no values to summarise, expected one a seed")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Summary(float(np.mean(values)), spread, spread / math.sqrt(len(values)), len(values))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Mean of ``values - baseline``, of the same seeds in the same order, with Student's 95 % confidence interval.

    Raises:
        ValueError: Different numbers of seeds, or none.

    Example:
        >>> paired_difference([2.0, 3.0, 4.0], [1.0, 1.0, 1.0])
        Difference(mean=2.0, low=-0.484..., high=4.484..., p_value=0.074...)
    """
    if len(values) != len(baseline) or not values:
        raise ValueError(f"{len(values)} values and {len(baseline)} of the baseline; expected as many, one a seed")
    differences = np.subtract(values, baseline)
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, math.nan, math.nan, math.nan)
    if np.ptp(differences) == 0:  # the interval is a point; scipy would divide by zero
        return Difference(mean, mean, mean, float(mean == 0))
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return Difference(mean, float(interval.low), float(interval.high), float(test.pvalue))
