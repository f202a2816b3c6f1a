"""Accuracy against coverage."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_attention.analysis import decompose_uncertainty, max_probability, selective_accuracy
from tests.analysis.classification.random_logits import sampled, shuffled

ITEMS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=6)


def curve_of(items):
    confidence, correct = (torch.tensor(column, dtype=torch.float64) for column in zip(*items, strict=True))
    return selective_accuracy(confidence, correct)


def test_by_hand():
    curve = selective_accuracy(torch.tensor([0.5, 0.9, 0.7, 0.6]), torch.tensor([False, True, False, True]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.accuracy.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.accuracy_at(0.01) == curve.accuracy_at(0.25) == 1
    assert curve.accuracy_at(0.26) == curve.accuracy_at(0.5) == 0.5
    assert curve.accuracy_at(1.0) == 0.5


def test_a_coverage_that_is_not_exact():
    """7 of 100 items: .07 * 100 is 7.000000000000001."""
    curve = selective_accuracy(-torch.arange(100.0), torch.arange(100) < 7)
    assert all(curve.accuracy_at(k / 100) == curve.accuracy[k - 1].item() for k in range(1, 101))
    assert curve.accuracy_at(0.07) == 1.0


@pytest.mark.parametrize(
    ("direction", "at_low", "at_high"),
    [(-1.0, 1.0, 1.0), (0.0, 0.7, 0.7), (1.0, 0.0, 4 / 7)],
    ids=["best", "none", "worst"],
)
def test_ranking_matters_as_expected(direction, at_low, at_high):
    """Of 100 items, 70 of them right: ranked perfectly, not at all, or the wrong way round."""
    ranked, none = (selective_accuracy(sign * torch.arange(100.0), torch.arange(100) < 70) for sign in (direction, 0.0))
    assert (ranked.area - none.area) * direction >= 0
    assert (ranked.area != none.area) == (direction != 0)
    assert none.area == pytest.approx(0.3)
    assert ranked.accuracy_at(0.3) == pytest.approx(at_low)
    assert ranked.accuracy_at(0.7) == pytest.approx(at_high)
    assert ranked.accuracy_at(1.0) == pytest.approx(0.7)
    torch.testing.assert_close(none.accuracy, torch.full((100,), 0.7, dtype=torch.float64))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(ITEMS)
def test_ties_give_the_mean_over_all_orders(items):
    """Brute force: every order, sorted stably by confidence."""
    curves = []
    for order in itertools.permutations(items):
        accuracies = [correct for _, correct in sorted(order, key=lambda item: -item[0])]
        curves.append([sum(accuracies[:k]) / k for k in range(1, len(items) + 1)])
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    torch.testing.assert_close(curve_of(items).accuracy, expected)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(ITEMS, st.integers(0, 1000))
def test_order_and_scale_do_not_matter(items, seed):
    curve = curve_of(items)
    assert 0 <= curve.area <= 1
    assert curve.accuracy_at(1.0) == pytest.approx(sum(correct for _, correct in items) / len(items))
    moved = curve_of([items[i] for i in shuffled(len(items), seed)])
    torch.testing.assert_close(moved.accuracy, curve.accuracy, rtol=0, atol=1e-12)
    scaled = curve_of([(math.exp(confidence), correct) for confidence, correct in items])
    assert scaled.accuracy.equal(curve.accuracy)


def test_both_confidences_find_the_errors():
    problem = sampled(samples=20, items=1000, spread=2.0, noise=0.7)
    # about .39, .30 and .32: labels are noisy, so no confidence gets near 0
    random = selective_accuracy(torch.rand(1000), problem.correct).area
    assert selective_accuracy(max_probability(problem.probabilities), problem.correct).area < 0.85 * random
    disagreement = decompose_uncertainty(problem.probabilities).mutual_information
    assert selective_accuracy(-disagreement, problem.correct).area < 0.9 * random


def test_max_probability():
    probabilities = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.4, 0.6]]])
    torch.testing.assert_close(max_probability(probabilities), torch.tensor([0.6, 0.7]))
    assert max_probability(probabilities[:1]).equal(max_probability(probabilities[0]))


@pytest.mark.parametrize(
    ("confidence", "correct", "error", "message"),
    [
        (torch.ones(3), torch.ones(2), ValueError, r"confidence has shape \(3,\), expected \[items\] = \(2,\)"),
        (torch.tensor([1.0, math.nan]), torch.ones(2), ValueError, "1 of 2 confidences are NaN"),
        (torch.ones(2, dtype=torch.int64), torch.ones(2), TypeError, "confidence has dtype torch.int64"),
        ([1.0, 2.0], torch.ones(2), TypeError, "confidence has type list, expected a floating-point tensor"),
        (torch.ones(0), torch.ones(0), ValueError, r"correct has shape \(0,\), expected \[items\] = at least one item"),
        (torch.ones(2), torch.tensor([1.0, -0.1]), ValueError, "correct has an entry -0.1"),
        (torch.ones(2), torch.tensor([1, 0]), TypeError, "correct has dtype torch.int64"),
    ],
)  # fmt: skip
def test_wrong_input(confidence, correct, error, message):
    with pytest.raises(error, match=message):
        selective_accuracy(confidence, correct)


@pytest.mark.parametrize("coverage", [0.0, -0.5, 1.01, math.nan])
def test_wrong_coverage(coverage):
    with pytest.raises(ValueError, match=r"coverage is .*, expected a fraction of the items in \(0, 1\]"):
        curve_of([(1, 1.0)]).accuracy_at(coverage)
