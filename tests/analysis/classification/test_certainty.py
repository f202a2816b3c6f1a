"""The paired t-test and the counts of PAvPU."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import ttest_rel

from pyro_attention.analysis import pavpu, top_two_p_values
from tests.analysis.classification.random_logits import for_all, sampled, shuffled

TESTS = ["logits", "probabilities"]


def two_classes(*differences):
    """Logits ``[M, items, 2]`` with these differences, one tuple of M for each item."""
    first = torch.tensor(differences, dtype=torch.float64).T
    return torch.stack([first, torch.zeros_like(first)], dim=-1)


def test_by_hand():
    """t = 0 and 2 with one degree of freedom, of which the tail is 1/2 - atan(t)/pi."""
    p_values = top_two_p_values(two_classes((1, -1), (1, 3), (-3, -1)), test="logits")
    p = 1 - 2 * math.atan(2) / math.pi
    torch.testing.assert_close(p_values, torch.tensor([1, p, p], dtype=torch.float64))
    accuracy = torch.tensor([True, True, False])
    at = pavpu(two_classes((1, -1), (1, 3), (-3, -1)), accuracy, test="logits", thresholds=[0.29, 0.3])
    assert list(at) == [0.29, 0.3]
    assert (at[0.29].accurate_uncertain, at[0.29].inaccurate_uncertain, at[0.29].pavpu) == (2, 1, pytest.approx(1 / 3))
    assert math.isnan(at[0.29].accurate_given_certain)
    low = at[0.3]
    counts = (low.accurate_certain, low.accurate_uncertain, low.inaccurate_certain, low.inaccurate_uncertain)
    assert counts == (1, 1, 1, 0)
    assert (low.pavpu, low.accurate_given_certain) == (pytest.approx(1 / 3), 0.5)
    assert (low.threshold, low.test, low.num_samples) == (0.3, "logits", 2)


def test_all_four_counts():
    """Certain differences (variance 0) and ties, in different numbers."""
    certain, tie = (2.0, 2.0, 2.0), (0.0, 0.0, 0.0)
    items = [(certain, True)] * 4 + [(tie, True)] * 3 + [(certain, False)] * 1 + [(tie, False)] * 2
    logits = two_classes(*(differences for differences, _ in items))
    at = pavpu(logits, torch.tensor([correct for _, correct in items]), test="logits")
    assert list(at) == [0.01, 0.05, 0.1]
    for result in at.values():
        assert (result.accurate_certain, result.accurate_uncertain) == (4, 3)
        assert (result.inaccurate_certain, result.inaccurate_uncertain) == (1, 2)
        assert result.pavpu == pytest.approx(6 / 10)
        assert result.accurate_given_certain == pytest.approx(4 / 5)
        assert result.uncertain_given_inaccurate == pytest.approx(2 / 3)
    everything = pavpu(logits, torch.ones(10), test="logits")[0.05]
    assert math.isnan(everything.uncertain_given_inaccurate)
    assert everything.pavpu == pytest.approx(5 / 10)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("samples", [2, 3, 20])
def test_agrees_with_scipy_item_by_item(test, samples):
    problem = sampled(samples=samples, items=50, classes=5)
    tested = problem.logits if test == "logits" else problem.probabilities
    p_values = top_two_p_values(problem.logits, test=test)
    assert p_values.min() < 0.1 < 0.5 < p_values.max()
    for item, p in enumerate(p_values):
        first, second = problem.probabilities.mean(0)[item].argsort(descending=True)[:2]
        expected = ttest_rel(tested[:, item, first], tested[:, item, second]).pvalue
        assert p.item() == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_logits_and_probabilities_differ():
    problem = sampled(samples=5, items=50, spread=3.0)
    logits, probabilities = (top_two_p_values(problem.logits, test=test) for test in TESTS)
    assert (logits - probabilities).abs().max() > 0.05
    # noise that all classes share cancels in both: logs of probabilities are logits
    logs = problem.probabilities.log()
    torch.testing.assert_close(top_two_p_values(logs, test="logits"), logits)


def test_the_top_two_are_those_of_the_mean_probability():
    """Class 2 has the largest mean logit, but classes 0 and 1 the largest mean probabilities."""
    logits = torch.tensor([[[10.0, 0.0, 6.0]], [[0.0, 10.0, 6.0]], [[10.0, 0.0, 6.0]]], dtype=torch.float64)
    expected = ttest_rel(logits[:, 0, 0], logits[:, 0, 1]).pvalue
    assert top_two_p_values(logits, test="logits").item() == pytest.approx(expected)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("samples", [2, 3, 7, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_variance(test, samples, dtype):
    """A gap of .1 is no exact number, and a mean of many may be off by rounding."""
    same = torch.tensor([[0.1, 0.0, -1.0], [0.3, 0.3, 0.1], [-5.0, 1e-3, 0.0]], dtype=dtype).expand(samples, 3, 3)
    assert top_two_p_values(same, test=test).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("test", TESTS)
def test_tiny_variance_gives_no_nan(test):
    logits = two_classes((1e-200, 2e-200, 4e-200), (0.0, 1e-200, -1e-200), (1e3, 1e3, 1e3 + 1e-12))
    p_values = top_two_p_values(logits, test=test)
    assert not p_values.isnan().any()


@pytest.mark.parametrize("test", TESTS)
@for_all()
def test_identical_samples_give_the_accuracy(test, problem, seed):
    same = problem.logits[:1].expand(4, -1, -1)
    top = same[0].softmax(-1).topk(2).values
    untied = top[:, 0] > top[:, 1]  # softmax rounds, so this holds for the logits too
    if not untied.any():
        return
    accuracy = problem.correct[untied]
    for result in pavpu(same[:, untied], accuracy, test=test).values():
        assert result.pavpu == pytest.approx(accuracy.double().mean().item())


@pytest.mark.parametrize("test", TESTS)
@for_all(min_samples=2)
def test_bounds_and_order(test, problem, seed):
    logits, correct = problem.logits, problem.correct
    p_values = top_two_p_values(logits, test=test)
    assert ((p_values >= 0) & (p_values <= 1)).all()
    results = pavpu(logits, correct, test=test)
    certain = [result.accurate_certain + result.inaccurate_certain for result in results.values()]
    assert certain == sorted(certain)  # more items are certain at a higher threshold
    for result in results.values():
        right, wrong = result.accurate_certain, result.inaccurate_uncertain
        assert 0 <= result.pavpu <= 1
        assert right + result.accurate_uncertain == correct.sum()
        assert wrong + result.inaccurate_certain == (~correct).sum()
        assert result.num_samples == len(logits)
    order, samples = shuffled(len(correct), seed), shuffled(len(logits), seed)
    assert pavpu(logits[:, order], correct[order], test=test) == results
    # the samples' order changes the last digits of a mean, which may decide between tied classes
    top = problem.probabilities.mean(0).topk(min(3, logits.size(-1))).values
    if (top[:, :-1] - top[:, 1:]).min() > 1e-9:
        moved = top_two_p_values(logits[samples], test=test)
        torch.testing.assert_close(moved, p_values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("test", TESTS)
def test_a_p_value_at_the_threshold_is_certain(test):
    logits = sampled(samples=3, items=1).logits
    p = top_two_p_values(logits, test=test).item()
    at, below = pavpu(logits, torch.tensor([True]), test=test, thresholds=[p, p * (1 - 1e-9)]).values()
    assert (at.accurate_certain, below.accurate_certain) == (1, 0)


def test_soft_accuracy():
    """The mean of a c + (1 - a)(1 - c)."""
    problem = sampled(samples=4, items=60)
    accuracy = torch.tensor([0.0, 1 / 3, 2 / 3, 1.0], dtype=torch.float64).repeat(15)
    certain = (top_two_p_values(problem.logits, test="logits") <= 0.05).double()
    result = pavpu(problem.logits, accuracy, test="logits")[0.05]
    assert 0 < certain.sum() < 60
    assert result.pavpu == pytest.approx((accuracy * certain + (1 - accuracy) * (1 - certain)).mean().item())
    assert result.accurate_given_certain == pytest.approx(((accuracy * certain).sum() / certain.sum()).item())
    inaccurate = (1 - accuracy).sum()
    expected = ((1 - accuracy) * (1 - certain)).sum() / inaccurate
    assert result.uncertain_given_inaccurate == pytest.approx(expected.item())


@pytest.mark.parametrize("test", TESTS)
def test_any_gap_becomes_certain_with_more_samples(test):
    logits = sampled(samples=1000, items=50, spread=0.5).logits
    counts = [pavpu(logits[:m], torch.ones(50), test=test)[0.05].accurate_certain for m in (5, 50, 1000)]
    assert counts[0] < counts[1] < counts[2]


def halves():
    problem = sampled(samples=5, items=60)
    parts = slice(0, 60), slice(0, 25), slice(25, None)
    return [pavpu(problem.logits[:, part], problem.correct[part], test="logits")[0.05] for part in parts]


def test_batches_may_be_added():
    whole, first, second = halves()
    assert first + second == whole
    with pytest.raises(TypeError, match="unsupported operand"):
        first + 1


@pytest.mark.parametrize("change", [{"threshold": 0.1}, {"test": "probabilities"}, {"num_samples": 6}], ids=str)
def test_batches_of_different_tests_are_not_added(change):
    _, first, second = halves()
    with pytest.raises(ValueError, match=r"threshold, test and num_samples are .* expected the same"):
        first + replace(second, **change)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"test": "scores"}, ValueError, "test is 'scores', expected one of logits, probabilities"),
        ({"logits": torch.zeros(1, 3, 2)}, ValueError, r"logits hold 1 sample\(s\), expected at least 2; draw more"),
        ({"logits": torch.zeros(3, 2)}, ValueError, r"shape \(3, 2\), expected \[S, items, classes\]; keep the"),
        ({"thresholds": []}, ValueError, r"thresholds is \(\), expected numbers between 0 and 1"),
        ({"thresholds": [0.05, 5.0]}, ValueError, r"thresholds is \(0.05, 5.0\), expected numbers between 0 and 1"),
        ({"thresholds": [math.nan]}, ValueError, r"thresholds is \(nan,\)"),
        ({"accuracy": torch.ones(4)}, ValueError, r"accuracy has shape \(4,\), expected \[items\] = \(3,\)"),
        ({"accuracy": torch.tensor([0.0, 1.5, 1.0])}, ValueError, "accuracy has an entry 1.5, expected numbers from 0"),
        ({"accuracy": torch.tensor([0.0, math.nan, 1.0])}, ValueError, "accuracy has an entry nan"),
        ({"accuracy": torch.tensor([1, 0, 1])}, TypeError,
         r"accuracy has dtype torch.int64, .* compare predictions with labels before"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_input(options, error, message):
    with pytest.raises(error, match=message):
        pavpu(**{"logits": torch.zeros(2, 3, 2), "accuracy": torch.ones(3), "test": "logits"} | options)
