"""Summaries and paired differences against SciPy and by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.report.statistics import paired_difference, summarize
from experiments.report.tables import markdown_table


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([82.0, 83.0, 84.0, 85.0], (83.5, math.sqrt(5 / 3), math.sqrt(5 / 12), 4)),
        ([1.0], (1.0, math.nan, math.nan, 1)),
    ],
)
def test_summary_by_hand(values, expected):
    found = summarize(values)
    shown = found.mean, found.spread, found.standard_error, found.count
    assert shown == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: summarize([]), "no values"),
        (lambda: paired_difference([2.0, 1.0], [1.0]), "2 values and 1"),
        (lambda: paired_difference([], []), "0 values and 0"),
    ],
)
def test_too_few_values_are_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_paired_difference_is_that_of_the_paired_t_test():
    generator = np.random.default_rng(0)
    baseline = generator.normal(size=12)
    values = baseline + 0.3 + 0.2 * generator.normal(size=12)
    found = paired_difference(values.tolist(), baseline.tolist())
    test = stats.ttest_rel(values, baseline)
    assert found.mean == pytest.approx(np.mean(values - baseline))
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.p_value == pytest.approx(test.pvalue)
    # shared noise of the seeds cancels
    assert found.high - found.low < 0.5 * (stats.t.interval(0.95, 11)[1] * np.std(values) * 2 / math.sqrt(12))


def test_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(1)
    draws = generator.normal(0.5, 1.0, size=(2000, 6))
    intervals = [paired_difference(row.tolist(), [0.0] * 6) for row in draws]
    covered = np.mean([found.low <= 0.5 <= found.high for found in intervals])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize(
    ("values", "baseline", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], (0.0, 0.0, 0.0, 1.0)),
        ([3.0, 4.0], [1.0, 2.0], (2.0, 2.0, 2.0, 0.0)),
        ([2.0], [1.0], (1.0, math.nan, math.nan, math.nan)),  # one seed has no interval
    ],
)
def test_identical_differences(values, baseline, expected):
    found = paired_difference(values, baseline)
    shown = found.mean, found.low, found.high, found.p_value
    assert shown == pytest.approx(expected, nan_ok=True, rel=0, abs=0)


def test_markdown_table_keeps_the_order_of_the_columns():
    assert markdown_table([{"b": 1, "a": "x"}, {"a": "y", "b": 2}]).splitlines()[2:] == ["| 1 | x |", "| 2 | y |"]
