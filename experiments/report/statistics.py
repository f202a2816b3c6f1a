"""Scores of class probabilities; means over seeds and differences between rows as cells of tables; columns."""

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
"""Noise of the samples of each kind of prediction."""


def score(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Return accuracy, NLL, ECE and Brier score of probabilities ``[items, classes]``, or of samples ``[S, ...]``."""
    return asdict(classification_scores(probabilities, labels))


def score_scaled(scaling: TemperatureScaling, logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return NLL, ECE and Brier score after temperature scaling of logits ``[items, classes]``, or of their samples."""
    return {f"scaled_{name}": value for name, value in score(scaling(logits), labels).items() if name != "accuracy"}


def score_samples(logits: Tensor, accurate: Tensor) -> dict[str, float]:
    """Return PAvPU and mutual information of logits ``[S, items, classes]``; ``accurate`` is a mask ``[items]``."""
    levels = pavpu(logits, accurate, thresholds=tuple(_LEVELS.values()))
    information = decompose_uncertainty(logits.softmax(-1)).mutual_information.mean().item()
    scores = {f"pavpu_{name}": levels[level] for name, level in _LEVELS.items()}
    return scores | {"mutual_information": information}


def roc_auc(probabilities: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve of the second class, from ``[items, 2]``; NaN for probabilities of NaN."""
    second = probabilities[:, 1]
    return float(roc_auc_score(labels.cpu().numpy(), second.cpu().numpy())) if second.isfinite().all() else math.nan


Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, with the spread over seeds or the 95 % interval of the mean over test items."""

    mean: float
    spread: float = math.nan  # standard deviation (unbiased variance); NaN where there is none
    count: int = 1  # number of seeds
    digits: int = 2  # digits behind the point
    with_error: bool = False  # show the standard error of the mean
    low: float = math.nan  # lower end of a 95 % interval over resampled test items
    high: float = math.nan  # upper end
    values: tuple[float, ...] = ()  # values of the seeds in order, from which paired intervals can be computed again

    @property
    def standard_error(self) -> float:
        """Standard error of the mean."""
        return self.spread / math.sqrt(self.count)

    def __str__(self) -> str:
        if not math.isnan(self.low):
            return f"{self.mean:.{self.digits}f} [{self.low:.{self.digits}f}, {self.high:.{self.digits}f}]"
        spread = "" if math.isnan(self.spread) else f" ± {self.spread:.{self.digits}f}"
        error = f" ({self.standard_error:.{self.digits}f})" if spread and self.with_error else ""
        return f"{self.mean:.{self.digits}f}{spread}{error}"


@dataclass(frozen=True)
class Difference:
    """Mean difference of a metric between two rows, with its 95 % interval."""

    mean: float
    low: float
    high: float
    p_value: float = math.nan  # of the paired two-sided t-test, not corrected for the number of comparisons
    count: int = 1  # number of seeds
    digits: int = 2  # digits behind the point
    metric: str = ""  # name of the metric
    against: str = ""  # row that is subtracted
    data: str = ""  # level, such as a data set, of a table whose rows have several
    better: Better | None = None  # direction of better numbers; None where neither direction is better
    over: Literal["seeds", "items"] = "seeds"  # the interval is over seeds, or over resampled test items
    bold: bool = False  # distinguishable from zero after the correction that the table names

    def __str__(self) -> str:
        interval = "" if math.isnan(self.low) else f" [{self.low:+.{self.digits}f}, {self.high:+.{self.digits}f}]"
        mark = "**" if self.bold else ""
        return f"{mark}{self.mean:+.{self.digits}f}{interval}{mark}"


def summarize(values: Sequence[float], digits: int = 2) -> Estimate:
    """Return mean and spread of the values of all seeds, with the values.

    Raises:
        ValueError: No values.
    """
    if not values:
        raise ValueError("no values to summarize; expected one for each seed")
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return Estimate(float(np.mean(values)), spread, len(values), digits, values=tuple(map(float, values)))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Return the mean of ``values - baseline`` with Student's 95 % confidence interval.

    Both have the values of the same seeds in the same order.

    Raises:
        ValueError: Different numbers of seeds, or none.
    """
    if len(values) != len(baseline) or not values:
        raise ValueError(
            f"{len(values)} values and {len(baseline)} of the baseline; expected one of both for each seed"
        )
    differences = np.subtract(values, baseline)
    mean = float(differences.mean())
    if len(differences) == 1:
        return Difference(mean, math.nan, math.nan)
    if np.ptp(differences) == 0:  # the interval is a point; scipy would divide by zero
        return Difference(mean, mean, mean, float(mean == 0), len(values))
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return Difference(mean, float(interval.low), float(interval.high), float(test.pvalue), len(values))


# columns of tables of several trainings

Cell = Estimate | Difference | str | float
Row = dict[str, Any]  # cells of a row of a table, by the heads of the columns
Runs = Sequence[Mapping[str, float]]  # metrics of a row of a study, with an entry for each seed


@dataclass(frozen=True)
class Column:
    """A metric of trainings, shown as mean and standard deviation over seeds."""

    name: str  # head of the column
    metric: str  # name in metrics.json
    digits: int = 3  # digits behind the point
    factor: float = 1.0  # multiplies the metric, such as 100 for percent
    spread: bool = True  # whether the standard deviation is shown; False for metrics that all seeds share
    better: Better | None = None  # direction of better numbers; None where neither direction is better
    compared: bool = True  # whether a study shows differences of rows beside it
    levels: Sequence[str] = ()  # levels of a study that have the column; all when empty

    def values(self, runs: Runs) -> list[float]:
        """Return the metric of every seed; seeds without it are left out."""
        return [self.factor * metrics[self.metric] for metrics in runs if self.metric in metrics]

    def cell(self, runs: Runs, *, error: bool = False) -> Estimate | str:
        """Return mean ± standard deviation, or "-" without the metric; ``error`` adds the standard error."""
        values = self.values(runs)
        if not values:
            return "-"
        estimate = summarize(values, self.digits)
        return replace(estimate, spread=estimate.spread if self.spread else math.nan, with_error=error)

    def paired(
        self, runs: Runs, baseline: Runs, reference: Column
    ) -> list[tuple[Mapping[str, float], Mapping[str, float]]]:
        """Return the metrics of both rows, seed by seed, of the seeds that have this metric and the reference's."""
        return [
            (of_row, of_baseline)
            for of_row, of_baseline in zip(runs, baseline, strict=True)
            if self.metric in of_row and reference.metric in of_baseline
        ]

    def difference(self, runs: Runs, baseline: Runs, against: str, *, other: Column | None = None) -> Difference:
        """Return the mean difference, seed by seed, to the row with the name ``against``.

        A seed without the metric in one of the rows is left out in both.

        Args:
            runs: Metrics of the row by seed.
            baseline: Metrics of the other row by seed.
            against: Name of the other row.
            other: Column of the other row, if it has another metric.

        Raises:
            ValueError: The rows have different numbers of seeds, or no seed has the metric in both.
        """
        reference = other or self
        paired_runs = self.paired(runs, baseline, reference)
        if not paired_runs:
            raise ValueError(f"no seed has {self.metric} and, in the row '{against}', {reference.metric}")
        of_rows, of_baselines = zip(*paired_runs, strict=True)
        difference = paired_difference(self.values(of_rows), reference.values(of_baselines))
        return replace(difference, digits=self.digits, metric=self.name, against=against, better=self.better)


def beside(*columns: Column) -> tuple[Column, ...]:
    """Return the columns without differences between rows."""
    return tuple(replace(column, compared=False) for column in columns)


def columns_of(runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Column]:
    """Return the columns for which some row has a number."""
    return [column for column in columns if any(column.values(metrics_of_seeds) for metrics_of_seeds in runs.values())]


def summary_rows(head: str, runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Row]:
    """Return a table with a row for each entry of ``runs``, named in the column ``head``, without empty columns."""
    shown = columns_of(runs, columns)
    return [
        {head: row} | {column.name: column.cell(metrics_of_seeds) for column in shown}
        for row, metrics_of_seeds in runs.items()
    ]
