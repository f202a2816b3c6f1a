"""Ranks, thresholds and what an uncertainty is worth, against counts by hand."""

import pytest
import torch

from pyro_attention import AttentionGuide, FixedGammaPrior, LatentAttention, LogNormal, Soft, predict
from pyro_attention.analysis import (
    choose_threshold,
    class_uncertainty,
    decompose_uncertainty,
    selection_value,
    selective_accuracy,
    wrong_answer_auroc,
)


def classifier(scores):
    attention = LatentAttention("attention", FixedGammaPrior())
    values = 3 * torch.eye(4, 3)
    return AttentionGuide(lambda x: attention(x, values.unsqueeze(0)).context[0], LogNormal(scale=0.7)), scores


SCORES = 2 * torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))


def test_class_uncertainty_is_that_of_the_draws():
    guide, scores = classifier(SCORES)
    result = class_uncertainty(guide, scores, num_samples=20, seed=1)
    draws = predict(guide, scores, num_samples=20, seed=1, keep_samples=True).samples.softmax(-1)
    torch.testing.assert_close(result.mean, draws.mean(0))
    expected = decompose_uncertainty(draws)
    torch.testing.assert_close(result.parts.total, expected.total)
    torch.testing.assert_close(result.parts.total, result.parts.aleatoric + result.parts.mutual_information)
    assert result.parts.total[result.order].diff().max() <= 0
    soft = class_uncertainty(AttentionGuide(guide.model, Soft()), scores, num_samples=2)
    assert soft.parts.mutual_information.max() < 1e-6


@pytest.mark.parametrize("shape", [(4, 1), (2, 4, 3)])
def test_outputs_that_are_no_classes(shape):
    attention = LatentAttention("attention", FixedGammaPrior())

    def model(x):
        attention(x, torch.ones(1, 4, 3))
        return torch.zeros(shape)

    with pytest.raises(ValueError, match=r"expected \[items, classes\] with two or more classes"):
        class_uncertainty(AttentionGuide(model, Soft()), SCORES, num_samples=1)


def by_pairs(uncertainty, right):
    pairs = [(w, r) for w in uncertainty[~right] for r in uncertainty[right]]
    return sum(float(w > r) + 0.5 * float(w == r) for w, r in pairs) / len(pairs)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_counts_pairs(ties):
    torch.manual_seed(0)
    uncertainty, right = torch.rand(40), torch.rand(40) < 0.6
    uncertainty = (4 * uncertainty).round() if ties else uncertainty
    assert wrong_answer_auroc(uncertainty, right) == pytest.approx(by_pairs(uncertainty, right))


def test_value_of_a_perfect_and_of_a_useless_order():
    right = torch.arange(50) < 30
    perfect = selection_value(torch.arange(50.0), right)
    assert perfect.auroc.value == perfect.auroc.low == 1.0
    assert perfect.area.value == pytest.approx(perfect.best)
    useless = selection_value(torch.zeros(50), right)
    assert (useless.auroc.value, useless.auroc.low, useless.auroc.high) == (0.5, 0.5, 0.5)
    assert useless.area.value == pytest.approx(useless.error) == pytest.approx(0.4)


def test_intervals_hold_the_truth():
    """95 % intervals of the AUROC over 60 data sets: scores of wrong items are N(1, 1), of right ones N(0, 1)."""
    truth = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(0.5**0.5)).item()
    torch.manual_seed(0)
    inside = 0
    for seed in range(60):
        right = torch.arange(80) < 50
        value = selection_value(torch.randn(80) + (~right).float(), right, num_resamples=200, seed=seed).auroc
        assert value.low <= value.value <= value.high
        inside += value.low <= truth <= value.high
    assert inside >= 60 * 0.95 - 4 * (60 * 0.95 * 0.05) ** 0.5  # four standard errors


def test_a_threshold_is_the_largest_that_reaches_the_accuracy():
    torch.manual_seed(1)
    uncertainty, right = (20 * torch.rand(60)).round() / 20, torch.rand(60) < 0.7
    chosen = choose_threshold(uncertainty, right, accuracy=0.75)
    reached = [
        t for t in uncertainty.unique().tolist() if right[uncertainty <= t].double().mean() >= 0.75
    ]  # fmt: skip
    assert chosen.value == pytest.approx(max(reached))
    kept = uncertainty <= max(reached)
    assert chosen.accuracy == pytest.approx(right[kept].double().mean().item())
    assert chosen.coverage == pytest.approx(kept.double().mean().item())


@pytest.mark.parametrize("right", [True, False])
def test_items_of_one_class(right):
    uncertainty, correct = torch.rand(5), torch.full((5,), right)
    kind = "right" if right else "wrong"
    for call in (lambda: choose_threshold(uncertainty, correct, accuracy=0.9),
                 lambda: selection_value(uncertainty, correct),
                 lambda: wrong_answer_auroc(uncertainty, correct)):  # fmt: skip
        with pytest.raises(ValueError, match=f"of one class: all 5 predictions are {kind}"):
            call()


def test_bad_numbers():
    uncertainty, correct = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([False, True, True])
    with pytest.raises(ValueError, match=r"no threshold reaches an accuracy of 0\.9 .* the best is 0\.667"):
        choose_threshold(uncertainty, correct, accuracy=0.9)
    with pytest.raises(ValueError, match=r"accuracy is 90"):
        choose_threshold(uncertainty, correct, accuracy=90)
    with pytest.raises(ValueError, match="NaN"):
        selection_value(torch.tensor([0.1, float("nan"), 0.3]), correct)
    with pytest.raises(ValueError, match="expected"):
        selection_value(uncertainty[:2], correct)
    assert selective_accuracy(-uncertainty, correct).area > 0


@pytest.mark.parametrize("unit", [1e-12, 1e-9, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_threshold_keeps_the_share_that_it_states(unit, dtype):
    """In any unit: rounding it would leave out the last item, or all of them."""
    torch.manual_seed(0)
    for _ in range(20):
        uncertainty, right = unit * torch.rand(30, dtype=dtype), torch.rand(30) < 0.8
        chosen = choose_threshold(uncertainty, right, accuracy=right.double().mean().item())
        assert (uncertainty <= chosen.value).double().mean().item() == pytest.approx(chosen.coverage)
        assert [value <= chosen.value for value in uncertainty.tolist()].count(True) == round(30 * chosen.coverage)
        assert right[uncertainty <= chosen.value].double().mean().item() == pytest.approx(chosen.accuracy)


def test_soft_accuracies():
    """A threshold averages them; for measures of right against wrong items nobody has said which are right."""
    uncertainty, accuracy = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, 0.9, 0.6, 0.7])
    chosen = choose_threshold(uncertainty, accuracy, accuracy=0.9)
    assert (chosen.value, chosen.coverage, chosen.accuracy) == pytest.approx((0.2, 0.5, 0.95))
    for call in (selection_value, wrong_answer_auroc):
        with pytest.raises(ValueError, match=r"correct holds 0\.9, expected booleans, or 0 and 1"):
            call(uncertainty, accuracy)
    numbers, booleans = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([True, False, True, False])
    assert selection_value(uncertainty, numbers) == selection_value(uncertainty, booleans)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 95}, r"level is 95, expected a probability in \(0, 1\)"),
        ({"level": 0.0}, r"level is 0\.0"),
        ({"num_resamples": 0}, "num_resamples is 0, and no resample of the 2 items"),
    ],
)
def test_bad_options_of_intervals(options, message):
    with pytest.raises(ValueError, match=message):
        selection_value(torch.tensor([0.1, 0.2]), torch.tensor([True, False]), **options)
