"""Probabilities of classes: scores, calibration, certainty, sources of uncertainty, selective prediction."""

import itertools
import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from pyro_attention.analysis import (
    TemperatureScaling,
    classification_scores,
    decompose_uncertainty,
    fit_temperature,
    pavpu,
    selective_accuracy,
    split_variance,
)
from pyro_attention.posterior.predictive import Prediction
from tests.analysis.random_inputs import PROPERTY, for_all, sampled

LABELS = torch.tensor([0, 1, 1])
HALVES = torch.full((2, 3, 2), 0.5)


def test_scores_by_hand():
    probabilities = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.65, 0.25, 0.1]], dtype=torch.float64)
    scores = classification_scores(probabilities, torch.tensor([0, 1, 2]), bins=10)
    assert scores.accuracy == pytest.approx(1 / 3)
    assert scores.nll == pytest.approx(-(math.log(0.7) + math.log(0.2) + math.log(0.1)) / 3)
    brier = (0.3**2 + 0.2**2 + 0.1**2) + (0.2**2 + 0.8**2 + 0.6**2) + (0.65**2 + 0.25**2 + 0.9**2)
    assert scores.brier == pytest.approx(brier / 3)
    # bins [.6, .7) and [.7, .8): accuracy 0 at confidence .625, and 1 at .7
    assert scores.ece == pytest.approx(2 / 3 * 0.625 + 1 / 3 * 0.3)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 1, 2], {"accuracy": 1.0, "nll": 0.0, "ece": 0.0, "brier": 0.0}),
        ([1, 2, 0], {"accuracy": 0.0, "nll": -math.log(1e-12), "ece": 1.0, "brier": 2.0}),
    ],
    ids=["right", "wrong"],
)
def test_extremes(labels, expected):
    assert asdict(classification_scores(torch.eye(3), torch.tensor(labels))) == pytest.approx(expected)


@pytest.mark.parametrize("classes", [2, 5])
def test_agrees_with_other_libraries(classes):
    problem = sampled(items=300, classes=classes)
    probabilities, labels = problem.probabilities[0], problem.labels
    scores = classification_scores(probabilities, labels)
    assert scores.accuracy == multiclass_accuracy(probabilities, labels, classes, average="micro").item()
    assert scores.ece == multiclass_calibration_error(probabilities, labels, classes, n_bins=15, norm="l1").item()
    fine = classification_scores(probabilities, labels, bins=40).ece
    assert fine == multiclass_calibration_error(probabilities, labels, classes, n_bins=40, norm="l1").item()
    assert fine != scores.ece
    array, names = probabilities.double().numpy(), range(classes)
    array = array / array.sum(-1, keepdims=True)
    assert scores.nll == pytest.approx(log_loss(labels, array, labels=names), rel=1e-5)
    brier = np.square(array - np.eye(classes)[labels]).sum(-1).mean()  # scikit-learn's knows two classes before 1.7
    assert scores.brier == pytest.approx(brier, rel=1e-5)


@pytest.mark.parametrize("above", [0.0, 1e-7])
def test_rounding_above_one_is_not_taken_for_logits(above):
    """The largest float32 above 1: torchmetrics would apply a softmax to all items."""
    probabilities = torch.tensor([[1.0 + above, 0.0], [0.75, 0.25]])
    assert (probabilities[0, 0] > 1) == (above > 0)
    scores = classification_scores(probabilities, torch.tensor([0, 1]))
    assert scores.ece == pytest.approx(0.75 / 2)


def nll(logits, labels, temperature):
    """Of the averaged probabilities, by another way than the implementation."""
    return -(logits / temperature).softmax(-1).mean(0)[torch.arange(len(labels)), labels].log().mean().item()


def test_temperature_by_hand():
    """One logit 3 for all: the best T gives the top class its frequency, logit(.8) = log 4."""
    logits = torch.tensor([[3.0, 0.0]]).expand(10, 2)
    scaling = fit_temperature(logits, torch.tensor([0] * 8 + [1] * 2))
    assert scaling.temperature == pytest.approx(3 / math.log(4), rel=1e-6)
    torch.testing.assert_close(scaling(logits), torch.tensor([0.8, 0.2]).expand(10, 2))


def test_samples_share_one_temperature_for_their_mixture():
    problem = sampled(samples=4, items=100, spread=5.0)
    scaling = fit_temperature(problem.logits, problem.labels)
    grid = [math.exp(-4.6 + 9.2 * step / 2000) for step in range(2001)]
    values = [nll(problem.logits, problem.labels, temperature) for temperature in grid]
    assert nll(problem.logits, problem.labels, scaling.temperature) <= min(values)
    assert scaling.temperature == pytest.approx(grid[values.index(min(values))], rel=0.01)
    # the mixture is less confident than its samples: it needs a smaller T
    assert scaling.temperature < 0.9 * fit_temperature(problem.logits[0], problem.labels).temperature


@pytest.mark.parametrize(
    ("gaps", "counts", "temperature"),
    [
        ([[4.0, -5.5, 0.5], [-1.5, 0.5, 195.0], [-7.0, -18.0, -0.3]], [5, 10, 5], 85.9),
        ([[0.23, 24.0], [-1.3, -0.08], [0.055, -0.004]], [16, 4], 0.011),
    ],
)
def test_finds_the_lower_of_two_minima(gaps, counts, temperature):  # golden sections alone find the other
    """Samples that contradict each other, in groups of items: how much the true class is ahead, in each sample."""
    gaps = torch.tensor(gaps, dtype=torch.float64).repeat_interleave(torch.tensor(counts), dim=1)
    logits, labels = torch.stack([gaps, torch.zeros_like(gaps)], dim=-1), torch.zeros(20, dtype=torch.int64)
    values = [nll(logits, labels, math.exp(-4.6 + 9.2 * step / 500)) for step in range(501)]
    minima = [a for before, a, after in zip(values, values[1:], values[2:], strict=False) if before > a < after]
    assert len(minima) == 2
    scaling = fit_temperature(logits, labels)
    assert nll(logits, labels, scaling.temperature) <= min(minima) + 1e-12 < max(minima) - 0.1
    assert scaling.temperature == pytest.approx(temperature, rel=0.05)


@for_all
def test_never_worse_than_no_scaling(problem):
    scaling = fit_temperature(problem.logits, problem.labels)
    before, after = (nll(problem.logits, problem.labels, each) for each in (1.0, scaling.temperature))
    assert after <= before + 1e-12 or math.isinf(before)
    one, none = (fit_temperature(logits, problem.labels) for logits in (problem.logits[:1], problem.logits[0]))
    assert one == none


SEPARATED = torch.tensor([[[0.5, -1.0, 0.0], [2.0, 1.5, 0.3]]])


@pytest.mark.parametrize(
    ("logits", "temperature"),
    [(SEPARATED, 0.01), (1000 * SEPARATED, 1.0), (torch.tensor([[[0.0, 5.0]]]), 100.0)],
    ids=["separated", "nothing left to gain", "wrong"],
)
def test_ends_at_a_bound_and_says_so_or_changes_nothing(logits, temperature):
    labels = torch.zeros(logits.size(1), dtype=torch.int64)
    expected = nullcontext() if temperature == 1 else pytest.warns(UserWarning, match="stands at the end of its grid")
    with expected:
        scaling = fit_temperature(logits.expand(3, -1, -1), labels)
    assert scaling.temperature == pytest.approx(temperature)


def test_labels_of_any_integer_type():
    problem = sampled(items=50, classes=3)
    for dtype in (torch.int32, torch.uint8, torch.int16):
        assert fit_temperature(problem.logits, problem.labels.to(dtype)) == fit_temperature(
            problem.logits, problem.labels
        )
        scores = [
            classification_scores(problem.probabilities, labels)
            for labels in (problem.labels.to(dtype), problem.labels)
        ]
        assert scores[0] == scores[1]


LOGITS, SINGLE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.5, 0.1], [0.3, 0.2, 0.1]]), torch.ones(3, 1)


@pytest.mark.parametrize("samples", [None, 2])
@pytest.mark.parametrize("score", ["temperature", "scores"])
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0]), ValueError, r"labels have shape \(1,\), expected \[items\] = \(3,\)"),
        (torch.tensor([0, 1]), ValueError, "label i is that of row i"),
        (torch.tensor([0, 1, 2, 0]), ValueError, r"labels have shape \(4,\)"),
        (torch.tensor([[0], [1], [2]]), ValueError, r"labels have shape \(3, 1\)"),
        (torch.tensor(1), ValueError, r"labels have shape \(\)"),
        (torch.tensor([], dtype=torch.int64), ValueError, r"labels have shape \(0,\)"),
        (torch.tensor([0, 1, 3]), ValueError, "labels: 1 of 3 lie outside 0 to 2, such as 3, with 3 classes"),
        (torch.tensor([-100, 1, -100]), ValueError, "labels: 2 of 3 lie outside 0 to 2, such as -100"),
        (torch.tensor([0.0, 1.0, 2.0]), TypeError, "labels are of dtype torch.float32, expected a tensor of integers"),
        ([0, 1, 2], TypeError, "labels are a list, expected a tensor of integers"),
        (None, TypeError, "labels are a NoneType"),
    ],
    ids=str,
)
def test_labels_that_do_not_fit(labels, error, message, samples, score):
    logits = LOGITS if samples is None else LOGITS.expand(samples, -1, -1)
    with pytest.raises(error, match=message):
        fit_temperature(logits, labels) if score == "temperature" else classification_scores(logits.softmax(-1), labels)


@pytest.mark.parametrize(
    "call",
    [
        lambda: fit_temperature(SINGLE, LABELS),
        lambda: classification_scores(SINGLE, torch.zeros(3, dtype=torch.int64)),
        lambda: pavpu(SINGLE.expand(4, 3, 1), LABELS.bool()),
        lambda: TemperatureScaling(2.0)(SINGLE),
    ],
)
def test_one_class_says_nothing(call):
    with pytest.raises(ValueError, match=r"have one class \(the last dimension\), expected two or more; .*torch.stack"):
        call()


@pytest.mark.parametrize("accuracy", [torch.tensor([]), torch.zeros(0, dtype=torch.bool)])
def test_accuracies_of_no_items(accuracy):
    with pytest.raises(ValueError, match=r"correct has shape \(0,\).*one item or more"):
        selective_accuracy(torch.tensor([]), accuracy)
    with pytest.raises(TypeError, match="accuracy is a list"):
        pavpu(HALVES, [True, False, True])


def two_classes(*differences):
    """Logits ``[M, items, 2]`` with these differences, one tuple of M for each item."""
    first = torch.tensor(differences, dtype=torch.float64).T
    return torch.stack([first, torch.zeros_like(first)], dim=-1)


def test_pavpu_by_hand():
    """Certain differences (variance 0) and ties, accurate and not, in different numbers."""
    certain, tie = (2.0, 2.0, 2.0), (0.0, 0.0, 0.0)
    items = [(certain, True)] * 4 + [(tie, True)] * 3 + [(certain, False)] * 1 + [(tie, False)] * 2
    logits = two_classes(*(differences for differences, _ in items))
    at = pavpu(logits, torch.tensor([correct for _, correct in items]))
    assert at == pytest.approx(dict.fromkeys([0.01, 0.05, 0.1], 6 / 10))
    assert pavpu(logits, torch.ones(10))[0.05] == pytest.approx(5 / 10)


def p_below(logits, threshold):
    """Whether an item alone is certain at a threshold."""
    right = torch.ones(logits.size(1))
    return pavpu(logits, right, thresholds=(threshold,))[threshold] == 1


@pytest.mark.parametrize("samples", [2, 20])
def test_agrees_with_scipy_item_by_item(samples):
    problem = sampled(samples=samples, items=50, classes=5)
    for item in range(50):
        first, second = problem.probabilities.mean(0)[item].argsort(descending=True)[:2]
        p, logits = (
            ttest_rel(problem.logits[:, item, first], problem.logits[:, item, second]).pvalue,
            problem.logits[:, [item]],
        )
        assert p_below(logits, min(p * (1 + 1e-9), (1 + p) / 2))
        assert not p_below(logits, p * (1 - 1e-9))


def test_the_top_two_are_those_of_the_mean_probability():
    """Class 2 has the largest mean logit, but classes 0 and 1 the largest mean probabilities."""
    logits = torch.tensor([[[10.0, 0.0, 6.0]], [[0.0, 10.0, 6.0]], [[10.0, 0.0, 6.0]]], dtype=torch.float64)
    p = ttest_rel(logits[:, 0, 0], logits[:, 0, 1]).pvalue
    assert (p_below(logits, p + 1e-9), p_below(logits, p - 1e-9)) == (True, False)


def test_soft_accuracy():
    """The mean of a c + (1 - a)(1 - c)."""
    problem = sampled(samples=4, items=60)
    accuracy = torch.tensor([0.0, 1 / 3, 2 / 3, 1.0], dtype=torch.float64).repeat(15)
    certain = torch.tensor([p_below(problem.logits[:, [item]], 0.05) for item in range(60)]).double()
    result = pavpu(problem.logits, accuracy)[0.05]
    assert 0 < certain.sum() < 60
    assert result == pytest.approx((accuracy * certain + (1 - accuracy) * (1 - certain)).mean().item())


def entropy(*probabilities):
    return -sum(p * math.log(p) for p in probabilities if p > 0)


@pytest.mark.parametrize(
    ("samples", "total", "aleatoric"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], math.log(2), 0.0),
        ([[0.9, 0.1], [0.5, 0.5]], entropy(0.7, 0.3), (entropy(0.9, 0.1) + math.log(2)) / 2),
    ],
    ids=["certain samples", "uncertain samples"],
)
def test_entropy_by_hand(samples, total, aleatoric):
    parts = decompose_uncertainty(torch.tensor(samples, dtype=torch.float64).unsqueeze(1))
    assert parts.total.item() == pytest.approx(total)
    assert parts.aleatoric.item() == pytest.approx(aleatoric)
    assert parts.mutual_information.item() == pytest.approx(total - aleatoric)


@for_all
def test_entropy_properties(problem):
    probabilities = problem.probabilities
    samples, _, classes = probabilities.shape
    parts = decompose_uncertainty(probabilities)
    assert (parts.mutual_information >= 0).all()
    assert (parts.aleatoric >= -1e-12).all()
    assert (parts.total <= math.log(classes) + 1e-12).all()
    # at most the entropy of which sample it was
    assert (parts.mutual_information <= math.log(samples) + 1e-12).all()
    torch.testing.assert_close(parts.total, parts.aleatoric + parts.mutual_information, rtol=0, atol=1e-12)
    # the mutual information is the mean divergence from the mean
    mean = probabilities.mean(0)
    divergence = torch.where(probabilities > 0, probabilities * (probabilities / mean).log(), 0.0).sum(-1).mean(0)
    torch.testing.assert_close(parts.mutual_information, divergence, rtol=0, atol=1e-9)
    one = decompose_uncertainty(probabilities[:1])
    assert (one.mutual_information == 0).all()
    assert one.total.equal(one.aleatoric)


def test_small_disagreement_survives_float32():
    """Samples that differ by 1e-4: a mutual information of 1e-9 beside entropies of 1."""
    exact = sampled(samples=10, items=50, noise=1e-4).probabilities
    expected = decompose_uncertainty(exact).mutual_information
    single = decompose_uncertainty(exact.float())
    assert single.total.dtype == torch.float32
    assert expected.median() < 1e-8
    torch.testing.assert_close(single.mutual_information.double(), expected, rtol=0.02, atol=1e-11)


def prediction(*variances, num_samples=100):
    variance = torch.tensor(variances)
    return Prediction(mean=torch.zeros_like(variance), variance=variance, num_samples=num_samples)


def test_split_by_hand():
    split = split_variance(attention=prediction(1.0, 3.0), dropout=prediction(2.0, 0.0), both=prediction(4.0, 2.0))
    assert split == pytest.approx({"attention": 4 / 6, "dropout": 2 / 6, "interaction": 0})
    nothing = split_variance(attention=prediction(0.0), dropout=prediction(0.0), both=prediction(0.0))
    assert math.isnan(nothing["attention"])


ITEMS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.3, 1.0])), min_size=1, max_size=6)


def curve_of(items):
    confidence, correct = (torch.tensor(column, dtype=torch.float64) for column in zip(*items, strict=True))
    return selective_accuracy(confidence, correct)


def test_selective_by_hand():
    curve = selective_accuracy(torch.tensor([0.5, 0.9, 0.7, 0.6]), torch.tensor([False, True, False, True]))
    assert curve.accuracy.tolist() == pytest.approx([1, 1 / 2, 2 / 3, 1 / 2])
    assert curve.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert curve.accuracy_at(0.01) == curve.accuracy_at(0.25) == 1
    assert curve.accuracy_at(0.26) == curve.accuracy_at(0.5) == 0.5
    assert curve.accuracy_at(1.0) == 0.5


@PROPERTY
@given(ITEMS)
def test_ties_give_the_mean_over_all_orders(items):
    """Brute force: every order, sorted stably by confidence."""
    curves = []
    for order in itertools.permutations(items):
        accuracies = [correct for _, correct in sorted(order, key=lambda item: -item[0])]
        curves.append([sum(accuracies[:k]) / k for k in range(1, len(items) + 1)])
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    torch.testing.assert_close(curve_of(items).accuracy, expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classification_scores(HALVES * math.nan, LABELS), "probabilities go down to nan"),
        (lambda: classification_scores(1.1 * HALVES, LABELS), r"sum to 1.1 over the classes .*apply .softmax"),
        (lambda: decompose_uncertainty(HALVES[0, 0]), r"expected \[items, classes\] or \[S, items, classes\]"),
        (lambda: pavpu(HALVES[0], torch.ones(3)), "with at least 2 samples"),
        (lambda: pavpu(HALVES, torch.ones(4)), r"accuracy has shape \(4,\)"),
        (lambda: selective_accuracy(torch.ones(3), torch.ones(2)), r"correct has shape \(2,\)"),
        (lambda: split_variance(attention=prediction(1.0), dropout=prediction(1.0, 1.0), both=prediction(1.0)),
         r"dropout has shape \(2,\), both \(1,\); expected predictions of the same items"),
    ],
)  # fmt: skip
def test_wrong_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ImportError, match=r"needs SciPy: pip install 'pyro-attention\[analysis\]'"):
        pavpu(HALVES, torch.ones(3))


def test_nothing_is_loaded_before_it_is_needed():
    names = ("pyro_attention.analysis", "scipy", "torchmetrics", "transformers")
    loaded = f"[name for name in {names} if name in sys.modules]"
    code = f"import sys, pyro_attention; print({loaded}); import pyro_attention.analysis; print({loaded})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.splitlines() == ["[]", "['pyro_attention.analysis']"]
