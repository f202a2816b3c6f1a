"""Scores of class probabilities, by hand and against torchmetrics and scikit-learn."""

import math
from dataclasses import asdict

import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from pyro_attention.analysis import (
    brier_score,
    classification_scores,
    expected_calibration_error,
    max_probability,
    negative_log_likelihood,
)
from tests.analysis.classification.random_logits import for_all, sampled, shuffled


def test_by_hand():
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 5])
def test_agrees_with_other_libraries(dtype, classes):
    problem = sampled(items=300, classes=classes)
    probabilities, labels = problem.probabilities[0].to(dtype), problem.labels
    scores = classification_scores(probabilities, labels)
    assert scores.accuracy == multiclass_accuracy(probabilities, labels, classes, average="micro").item()
    assert scores.ece == multiclass_calibration_error(probabilities, labels, classes, n_bins=15, norm="l1").item()
    fine = expected_calibration_error(probabilities, labels, bins=40)
    assert fine == multiclass_calibration_error(probabilities, labels, classes, n_bins=40, norm="l1").item()
    assert fine != scores.ece
    array, names = probabilities.double().numpy(), range(classes)
    array = array / array.sum(-1, keepdims=True)
    assert scores.nll == pytest.approx(log_loss(labels, array, labels=names), rel=1e-5)
    brier = brier_score_loss(labels, array, labels=names, scale_by_half=False)
    assert scores.brier == pytest.approx(brier, rel=1e-5)


@for_all()
def test_samples_are_averaged_in_probability_space(problem, seed):
    probabilities, labels = problem.probabilities, problem.labels
    scores = classification_scores(probabilities, labels)
    assert scores == classification_scores(probabilities.mean(0), labels)
    assert scores.nll == negative_log_likelihood(probabilities, labels)
    assert scores.brier == brier_score(probabilities, labels)
    assert scores.ece == expected_calibration_error(probabilities, labels)
    assert classification_scores(probabilities[:1], labels) == classification_scores(probabilities[0], labels)
    # the proper scores are convex
    each = [classification_scores(sample, labels) for sample in probabilities]
    assert scores.nll <= sum(score.nll for score in each) / len(each) + 1e-9
    assert scores.brier <= sum(score.brier for score in each) / len(each) + 1e-9


@for_all()
def test_order_does_not_matter(problem, seed):
    (samples, items, classes), labels = problem.logits.shape, problem.labels
    scores = classification_scores(problem.probabilities, labels)
    assert 0 <= scores.ece <= 1
    assert 0 <= scores.brier <= 2
    order = shuffled(items, seed)
    moved = classification_scores(problem.probabilities[shuffled(samples, seed)][:, order], labels[order])
    assert moved.nll == pytest.approx(scores.nll)
    assert moved.brier == pytest.approx(scores.brier)
    # of two classes equal up to rounding, the order of the samples may decide
    top = problem.probabilities.mean(0).topk(2).values
    if (top[:, 0] - top[:, 1]).min() > 1e-9:
        assert moved.accuracy == scores.accuracy
        assert moved.ece == pytest.approx(scores.ece, abs=2e-6)
    labelled = shuffled(classes, seed)
    renamed = classification_scores(problem.probabilities[..., labelled], labelled.argsort()[labels])
    assert renamed.nll == pytest.approx(scores.nll)
    assert renamed.brier == pytest.approx(scores.brier)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    problem = sampled(items=200, classes=50, spread=3.0)
    exact = classification_scores(problem.probabilities, problem.labels)
    half = classification_scores(problem.probabilities.to(dtype), problem.labels)
    assert asdict(half) == pytest.approx(asdict(exact), abs=0.02)


@pytest.mark.parametrize("above", [0.0, 1e-7])
def test_rounding_above_one_is_not_taken_for_logits(above):
    """The largest float32 above 1: torchmetrics would apply a softmax to all items."""
    probabilities = torch.tensor([[1.0 + above, 0.0], [0.75, 0.25]])
    assert (probabilities[0, 0] > 1) == (above > 0)
    scores = classification_scores(probabilities, torch.tensor([0, 1]))
    assert scores.ece == pytest.approx(0.75 / 2)
    assert max_probability(probabilities).tolist() == [1.0, 0.75]
