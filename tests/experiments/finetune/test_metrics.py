"""Metrics of GLUE against scikit-learn and SciPy, those of SQuAD on worked examples, spans against a search by hand;
noise in labels, and the choice of examples."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics

from experiments.datasets.text.squad import Question
from experiments.finetune.glue import METRICS, glue_scores, noisy_labels
from experiments.finetune.model import share_of
from experiments.finetune.questions import (
    BestSpans,
    Window,
    WindowBatch,
    Windows,
    best_answers,
    best_spans,
    question_scores,
)

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


@pytest.mark.parametrize("task", ["mrpc", "cola", "stsb"])
def test_a_score_that_does_not_exist_is_zero(task):
    assert glue_scores(task, np.zeros(4), np.array([0.0, 1, 0, 1]))[METRICS[task][0]] == 0


@pytest.mark.parametrize("classes", [3, 0])
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


# Questions


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "f1"),
    [
        ("an-other U.S.A. theme’s", ["another usa theme’s"], 1, 1),  # "-" goes before articles; ASCII marks
        ("Denver Broncos team", ["Denver Broncos"], 0, 0.8),  # 2 of 3 words, all 2 found
        ("Broncos Broncos", ["Denver Broncos"], 0, 0.5),  # a word counts once: precision and recall 1/2
        ("Carolina", ["Denver", "Carolina Panthers"], 0, 2 / 3),  # the best answer
    ],
)
def test_worked_examples(predicted, answers, exact, f1):
    assert question_scores(predicted, answers) == pytest.approx((exact, f1))


def test_the_best_span_is_the_best_of_all_that_are_allowed():
    torch.manual_seed(0)
    logits, longest = 3 * torch.randn(4, 3, 2, 9), 3
    allowed = torch.tensor(
        [[1, 0, 0, 1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1, 1, 1, 1]]
    ).bool()
    nothing = torch.tensor([0, 0, 8])
    logits = logits.masked_fill(~allowed[:, None], -1e4)
    zeros = torch.zeros(3, dtype=torch.int64)
    batch = WindowBatch({}, allowed, zeros, zeros, nothing, torch.arange(3))
    found = best_spans(logits, batch, longest=longest)
    mean = logits.softmax(-1).mean(0)
    for row in range(3):
        context = [place for place in range(9) if allowed[row, place] and place != nothing[row]]
        spans = {(i, j): mean[row, 0, i] * mean[row, 1, j] for i in context for j in context if 0 <= j - i < longest}
        best = max(spans, key=spans.get)
        assert (found.first[row], found.last[row]) == best
        torch.testing.assert_close(found.score[row].exp(), spans[best])
        entropy = sum(torch.distributions.Categorical(side).entropy() for side in mean[row])
        torch.testing.assert_close(found.entropy[row], entropy)
    assert (found.mutual_information > 0).all()
    assert best_spans(logits[:1], batch, longest=longest).mutual_information.max() < 1e-5


def test_the_best_answer_is_that_of_all_windows():
    spans = torch.tensor([[0, 0], [0, 1], [2, 3]])  # "a" and "b"
    windows = [Window(question, {}, spans, 0, 0, 0) for question in (0, 0, 1)]
    data = Windows.__new__(Windows)
    data.windows, data.rows, data.questions = windows, windows, [Question("q", "t", "a b", "?", ())] * 2
    first, entropy = torch.tensor([1, 2, 2]), torch.tensor([1.0, 2.0, 3.0])
    found = BestSpans(torch.arange(3), torch.tensor([-2.0, -1.0, -3.0]), first, first, entropy, torch.zeros(3))
    answered = best_answers(data, [found])
    assert answered.texts == ["b", "b"]
    assert answered.entropy.tolist() == [2.0, 3.0]
