"""The jackknife over the draws: by hand, by finite differences, by exact sums, and where one draw has it all."""

import math

import pytest
import torch

from pyro_attention.objectives.correction import CLIP, evidence_bound, gradient_factors, jackknife_gap


def drawn(draws, items, scale, seed=0):
    return scale * torch.randn(draws, items, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def gap_by_hand(log_weights):
    """K L_K - (K - 1) mean of the bounds without a draw - L_K, one draw after the other."""
    count = len(log_weights)
    bound = log_weights.logsumexp(0) - math.log(count)
    without = [
        torch.cat([log_weights[:k], log_weights[k + 1 :]]).logsumexp(0) - math.log(count - 1) for k in range(count)
    ]
    return count * bound - (count - 1) * torch.stack(without).mean(0) - bound


@pytest.mark.parametrize("draws", [2, 4, 16, 500])
def test_gap_by_hand(draws):
    log_weights = drawn(draws, 50, 2.0)
    torch.testing.assert_close(jackknife_gap(log_weights), gap_by_hand(log_weights), rtol=1e-9, atol=1e-12)
    assert (jackknife_gap(log_weights) >= 0).all()
    assert jackknife_gap(torch.full((draws, 1), 3.0)).item() == pytest.approx(0, abs=1e-5)  # all weights alike


@pytest.mark.parametrize("behind", [5.0, 20.0, 60.0])
def test_no_digit_is_lost_where_one_draw_has_all_the_weight(behind):
    """In single precision, where 1 - p is zero from 17 nats on."""
    log_weights = drawn(8, 1, 0.5) - behind
    log_weights[3] = 0.0
    exact, gap = gap_by_hand(log_weights), jackknife_gap(log_weights.float())
    assert gap.item() == pytest.approx(exact.item(), rel=1e-5)
    single, double = (evidence_bound(x, corrected=True).value.item() for x in (log_weights.float(), log_weights))
    assert single == pytest.approx(double, rel=1e-5)


@pytest.mark.parametrize("count", [1, 5, 7])
def test_vanished_weights(count):
    """Weights of zero are no error as long as one is left, and pass no gradient on."""
    log_weights = drawn(8, 3, 1.0)
    log_weights[:count, 1] = -math.inf
    log_weights.requires_grad_()
    bound = evidence_bound(log_weights, corrected=True)
    (gradient,) = torch.autograd.grad(bound.value.sum(), log_weights)
    assert all(numbers.isfinite().all() for numbers in (bound.value, bound.gap, gradient))
    assert (gradient[:count, 1] == 0).all()
    assert gradient_factors(log_weights, corrected=True).isfinite().all()


@pytest.mark.parametrize("scale", [0.3, 2.0, 20.0])
def test_gradient_by_finite_differences(scale):
    log_weights = drawn(5, 4, scale).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: evidence_bound(x, corrected=True).value, log_weights)
    assert torch.autograd.gradgradcheck(lambda x: evidence_bound(x, corrected=True).value, log_weights)


@pytest.mark.parametrize("draws", [4, 7, 16, 200])
def test_estimate_rises_with_every_weight(draws):
    """So a draw that explains an item better is never a reason to lower the objective."""
    for scale in (0.1, 0.5, 1.0, 2.0, 5.0):
        log_weights = drawn(draws, 2000, scale).requires_grad_()
        (gradient,) = torch.autograd.grad(evidence_bound(log_weights, corrected=True).value.sum(), log_weights)
        assert (gradient / log_weights.softmax(0)).min() > 0.3


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0, 12.0])
def test_gradient_factors_are_those_of_the_second_derivative(corrected, scale):
    """(g - dg / dl) / g of every draw, by automatic differentiation."""
    for seed in range(5):
        log_weights = drawn(6, 1, scale, seed).squeeze(1)
        log_weights.requires_grad_()
        (first,) = torch.autograd.grad(
            evidence_bound(log_weights, corrected=corrected).value, log_weights, create_graph=True
        )
        rows = [torch.autograd.grad(slope, log_weights, retain_graph=True)[0] for slope in first]
        second, first = torch.stack(rows).diagonal(), first.detach()
        factors = gradient_factors(log_weights, corrected=corrected)
        torch.testing.assert_close(factors, (first - second) / first, rtol=1e-6, atol=1e-9)


def expectation(draws, estimate, high=3.0, chance=0.4):
    """Of draws whose weight is 1, or ``high`` by a chance: a sum over the number of high ones, without any error."""
    total = 0.0
    for count in range(draws + 1):
        weights = torch.ones(draws, dtype=torch.double)
        weights[:count] = high
        total += (
            math.comb(draws, count) * chance**count * (1 - chance) ** (draws - count) * estimate(weights.log()).item()
        )
    return total


def test_first_order_of_the_bias_is_gone():
    """Half as many draws double the bias of the bound, and make that of the corrected one four times as large."""
    evidence = math.log(0.6 + 0.4 * 3.0)
    bias = {
        (corrected, draws): expectation(draws, lambda x, c=corrected: evidence_bound(x, corrected=c).value) - evidence
        for corrected in (False, True)
        for draws in (8, 32, 64)
    }
    assert bias[False, 32] / bias[False, 64] == pytest.approx(2, rel=0.03)
    assert bias[True, 32] / bias[True, 64] == pytest.approx(4, rel=0.1)
    for draws in (8, 32, 64):
        assert abs(bias[True, draws]) < 0.15 * abs(bias[False, draws])


def test_gap_is_the_gap():
    """In expectation, up to the next order: so the record of an objective says what is missing."""
    for draws in (16, 64):
        missing = math.log(0.6 + 0.4 * 3.0) - expectation(draws, lambda x: evidence_bound(x, corrected=False).value)
        assert expectation(draws, jackknife_gap) == pytest.approx(missing, rel=1 / draws)


def test_correction_is_clipped_and_the_rest_is_reported():
    log_weights = torch.tensor([[0.0, 0.0], [0.1, 9.0], [0.2, 0.0], [0.0, 0.0]])
    plain, bound = (evidence_bound(log_weights, corrected=corrected) for corrected in (False, True))
    added = bound.value - plain.value
    torch.testing.assert_close(plain.gap, plain.remainder)
    torch.testing.assert_close(bound.gap, plain.gap)
    torch.testing.assert_close(bound.remainder, bound.gap - added)
    assert bound.gap[1] > 5
    assert added[1].item() == pytest.approx(CLIP)
    assert added[0].item() == pytest.approx(bound.gap[0].item(), rel=1e-2)
