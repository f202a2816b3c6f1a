"""Scores of class probabilities; means over seeds and differences of rows, which know how they are written; columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from pyro_attention.analysis import TemperatureScaling, classification_scores, decompose_uncertainty, pavpu
from pyro_attention.posterior.predictive import Noise

_LEVELS = {"01": 0.01, "05": 0.05, "10": 0.1}
KINDS: Mapping[str, Noise] = {"mean": "none", "attention": "attention", "mc_dropout": "dropout", "both": "both"}
"""Kinds of predictions, and what varies between their samples."""


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, NLL, ECE and Brier score, of probabilities ``[items, classes]`` or samples of them ``[S, ...]``."""
    return asdict(classification_scores(probabilities, labels))


def score_scaled(scaling: TemperatureScaling, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """NLL, ECE and Brier score after temperature scaling, of logits ``[items, classes]`` or samples of them."""
    return {f"scaled_{name}": value for name, value in score(scaling(logits), labels).items() if name != "accuracy"}


def score_samples(logits: Tensor, accurate: Tensor) -> dict[str, float]:
    """PAvPU and mutual information, from logits ``[S, items, classes]`` and whether each item is accurate."""
    levels = pavpu(logits, accurate, thresholds=tuple(_LEVELS.values()))
    information = decompose_uncertainty(logits.softmax(-1)).mutual_information.mean().item()
    found = {f"pavpu_{name}": levels[level] for name, level in _LEVELS.items()}
    return found | {"mutual_information": information}


def roc_auc(probabilities: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve of the second of two classes, from ``[items, 2]``; NaN where a number is not finite."""
    second = probabilities[:, 1]
    return float(roc_auc_score(labels.cpu().numpy(), second.cpu().numpy())) if second.isfinite().all() else math.nan


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
    values: tuple[float, ...] = ()  # of every seed, in their order, so that paired intervals can be computed again

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
    """Mean and spread of the values of all seeds, which stay in the estimate.

    Raises:
        ValueError: No values.
    """
    if not values:
        raise ValueError("no values to summarize, expected one a seed")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(np.mean(values)), spread, len(values), digits, values=tuple(map(float, values)))


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
    compared: bool = True  # whether a study shows differences of rows beside it
    levels: Sequence[str] = ()  # levels of a study that have the column; all when empty

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


def beside(*columns: Column) -> tuple[Column, ...]:
    """Return columns that a study shows without differences."""
    return tuple(replace(column, compared=False) for column in columns)


def columns_of(runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Column]:
    """The columns that some row has a number for."""
    return [column for column in columns if any(column.values(found) for found in runs.values())]


def summary_rows(head: str, runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Row]:
    """A table with one row for each entry of ``runs``, named in the column ``head``; empty columns are left out."""
    shown = columns_of(runs, columns)
    return [{head: row} | {column.name: column.cell(found) for column in shown} for row, found in runs.items()]
