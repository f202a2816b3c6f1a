"""The temperature that minimises the NLL, with and without samples."""

import math

import pytest
import torch
from torch import nn

from pyro_attention.analysis import (
    TemperatureScaling,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)
from tests.analysis.classification.random_logits import for_all, sampled, shuffled


def nll(logits, labels, temperature):
    """Of the averaged probabilities, by another way than the implementation."""
    return -(logits / temperature).softmax(-1).mean(0)[torch.arange(len(labels)), labels].log().mean().item()


def test_by_hand():
    """One logit 3 for all: the best T gives the top class its frequency, logit(.8) = log 4."""
    logits = torch.tensor([[3.0, 0.0]]).expand(10, 2)
    scaling = fit_temperature(logits, torch.tensor([0] * 8 + [1] * 2))
    assert scaling.temperature == pytest.approx(3 / math.log(4), rel=1e-6)
    assert scaling.nll == pytest.approx(-0.8 * math.log(0.8) - 0.2 * math.log(0.2))
    assert scaling.nll_before == pytest.approx(0.2 * 3 + math.log1p(math.exp(-3)))
    assert not scaling.at_bound
    torch.testing.assert_close(scaling(logits), torch.tensor([0.8, 0.2]).expand(10, 2))


def test_is_stationary_without_samples():
    problem = sampled(items=500, spread=4.0)
    logits = problem.logits[0]
    inverse = torch.tensor(1 / fit_temperature(logits, problem.labels).temperature, dtype=torch.float64)
    inverse.requires_grad_()
    nn.functional.cross_entropy(inverse * logits, problem.labels).backward()
    assert abs(inverse.grad) < 1e-6


@pytest.mark.parametrize("factor", [0.05, 0.5, 7.0])
def test_undoes_a_scaling(factor):
    problem = sampled(items=200)
    base = fit_temperature(problem.logits, problem.labels)
    scaled = fit_temperature(factor * problem.logits, problem.labels)
    assert scaled.temperature == pytest.approx(factor * base.temperature, rel=1e-5)
    assert scaled.nll == pytest.approx(base.nll)
    torch.testing.assert_close(scaled(factor * problem.logits), base(problem.logits), rtol=1e-4, atol=1e-6)


def test_samples_share_one_temperature_for_their_mixture():
    problem = sampled(samples=4, items=100, spread=5.0)
    scaling = fit_temperature(problem.logits, problem.labels)
    grid = [math.exp(-4.6 + 9.2 * step / 2000) for step in range(2001)]
    values = [nll(problem.logits, problem.labels, temperature) for temperature in grid]
    assert scaling.nll <= min(values)
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
    assert scaling.nll <= min(minima) < max(minima) - 0.1
    assert scaling.temperature == pytest.approx(temperature, rel=0.05)


@for_all()
def test_never_worse_than_no_scaling(problem, seed):
    scaling = fit_temperature(problem.logits, problem.labels)
    assert scaling.nll <= scaling.nll_before
    assert 0.01 <= scaling.temperature <= 100
    assert scaling.nll_before == pytest.approx(nll(problem.logits, problem.labels, 1.0), abs=1e-9)
    if scaling.nll < 27:  # above it, the score's floor of 1e-12 has an influence
        after = negative_log_likelihood(scaling(problem.logits), problem.labels)
        assert scaling.nll == pytest.approx(after, abs=1e-9) or after < scaling.nll
    one, none = (fit_temperature(logits, problem.labels) for logits in (problem.logits[:1], problem.logits[0]))
    assert one == none
    order, samples = shuffled(len(problem.labels), seed), shuffled(len(problem.logits), seed)
    moved = fit_temperature(problem.logits[samples][:, order], problem.labels[order])
    assert moved.nll == pytest.approx(scaling.nll, abs=1e-9)


def test_probabilities_are_averaged_after_scaling():
    problem = sampled()
    scaling = fit_temperature(problem.logits, problem.labels)
    expected = (problem.logits / scaling.temperature).softmax(-1).mean(0)
    torch.testing.assert_close(scaling(problem.logits), expected)
    torch.testing.assert_close(scaling(problem.logits[:1]), scaling(problem.logits[0]), rtol=0, atol=0)


def test_calibrates_overconfident_logits():
    problem = sampled(samples=1, items=2000, spread=5.0)
    scaling = fit_temperature(problem.logits[:, :1000], problem.labels[:1000])
    held_out, labels = problem.logits[:, 1000:], problem.labels[1000:]
    assert scaling.temperature > 2
    before = expected_calibration_error(held_out.softmax(-1), labels)
    assert expected_calibration_error(scaling(held_out), labels) < 0.3 * before


SEPARATED = torch.tensor([[[0.5, -1.0, 0.0], [2.0, 1.5, 0.3]]])


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize(
    ("logits", "bounds", "temperature", "at_bound"),
    [
        (SEPARATED, (0.01, 100.0), 0.01, True),
        (SEPARATED, (0.5, 2.0), 0.5, True),
        (1000 * SEPARATED, (0.01, 100.0), 1.0, False),  # nothing left to gain: no change
        (torch.tensor([[[0.0, 5.0]]]), (0.01, 100.0), 100.0, True),
        (torch.zeros(1, 5, 4), (0.01, 100.0), 1.0, False),
    ],
    ids=["separated", "separated within bounds", "certain", "wrong", "uninformative"],
)
def test_ends_at_a_bound_or_changes_nothing(logits, bounds, temperature, at_bound, samples):
    logits = logits.expand(samples, -1, -1)
    scaling = fit_temperature(logits, torch.zeros(logits.size(1), dtype=torch.int64), bounds=bounds)
    assert (scaling.temperature, scaling.at_bound) == (temperature, at_bound)
    assert 0 <= scaling.nll <= scaling.nll_before
    assert scaling.nll < 1e-12 or temperature != 0.01
    assert at_bound or scaling.nll == scaling.nll_before
    assert logits.any() or scaling.nll == pytest.approx(math.log(4))


@pytest.mark.parametrize("bounds", [(0.0, 10.0), (2.0, 10.0), (0.1, 0.9), (0.1, math.inf), (math.nan, 10.0)])
def test_wrong_bounds(bounds):
    with pytest.raises(ValueError, match=r"bounds is \(.*\), expected 0 < low <= 1 <= high, finite"):
        fit_temperature(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64), bounds=bounds)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_is_positive(temperature):
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive finite number"):
        TemperatureScaling(temperature=temperature, nll=0.0, nll_before=0.0, at_bound=False)
