"""Metrics against scikit-learn and SciPy, noise in labels, and the choice of examples."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

from experiments.finetune.data import noisy_labels, share_of
from experiments.finetune.metrics import METRICS, glue_scores, weighted_score

GENERATOR = np.random.default_rng(0)
CLASSES = GENERATOR.integers(0, 2, (2, 50)).astype(float)
GRADES = np.round(GENERATOR.normal(size=(2, 50)), 1)
EXPECTED = {
    "accuracy": lambda x, y: metrics.accuracy_score(y, x),
    "f1": lambda x, y: metrics.f1_score(y, x),
    "matthews": lambda x, y: metrics.matthews_corrcoef(y, x),
    "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
    "spearman": lambda x, y: stats.spearmanr(x, y).statistic,
}


@pytest.mark.parametrize("task", METRICS)
def test_scores(task):
    predicted, labels = GRADES if task == "stsb" else CLASSES
    found = glue_scores(task, predicted, labels)
    assert tuple(found) == METRICS[task]
    for name, value in found.items():
        assert value == pytest.approx(EXPECTED[name](predicted, labels), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson"])
def test_scores_of_resampled_items(name):
    predicted, labels = GRADES if name == "pearson" else CLASSES
    counts = GENERATOR.multinomial(50, np.full(50, 1 / 50), size=3)
    expected = [EXPECTED[name](np.repeat(predicted, count), np.repeat(labels, count)) for count in counts]
    np.testing.assert_allclose(weighted_score(name, predicted, labels, counts), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["f1", "matthews", "pearson", "spearman"])
def test_a_score_that_does_not_exist_is_zero(name):
    assert weighted_score(name, np.zeros(4), np.array([0.0, 1, 0, 1]), np.ones((1, 4)))[0] == 0


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_noisy_labels(classes):
    labels = torch.arange(40) % (classes or 40)
    few, many = (noisy_labels(labels, share, classes=classes, seed=1) for share in (0.1, 0.5))
    assert torch.equal(noisy_labels(labels, 0.0, classes=classes, seed=1), labels)
    if classes:
        # every label that is replaced becomes another one
        assert [(noisy != labels).sum().item() for noisy in (few, many)] == [4, 20]
        assert many.max() < classes
    assert set((few != labels).nonzero().flatten().tolist()) <= set((many != labels).nonzero().flatten().tolist())


def test_a_larger_share_holds_a_smaller_one():
    few, many = (set(share_of(20, share, seed=3).tolist()) for share in (0.25, 0.5))
    assert (len(few), len(many)) == (5, 10)
    assert few < many
    assert set(share_of(20, 0.25, seed=4).tolist()) != few
    assert share_of(20, 1.0, seed=3).tolist() == list(range(20))
