"""Entropies, credible intervals, prior against posterior, and the K largest weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_attention.analysis import alignment_uncertainty, credible_intervals, k_max, prior_to_posterior
from tests.analysis.alignments.random_alignments import PROPERTY, SIZES, weights_of

SEEDS = st.integers(0, 1000)
HALVES = torch.tensor([[0.5, 0.5]])


# entropy


@pytest.mark.parametrize(
    ("weights", "entropy"),
    [([1.0, 0.0, 0.0, 0.0], 0.0), ([0.25] * 4, math.log(4)), ([0.5, 0.5, 0.0, 0.0], math.log(2))],
    ids=["certain", "uniform", "two"],
)
def test_entropy_by_hand(weights, entropy):
    parts = alignment_uncertainty(torch.tensor([weights]))
    torch.testing.assert_close(parts.entropy, torch.tensor([entropy]))
    assert parts.expected_entropy.equal(parts.entropy)
    assert parts.mutual_information.eq(0).all()


@PROPERTY
@given(SIZES, SEEDS)
def test_entropy_properties(size, seed):
    samples = weights_of(4, *size, seed=seed)
    parts = alignment_uncertainty(samples)
    torch.testing.assert_close(parts.entropy, parts.expected_entropy + parts.mutual_information)
    assert (parts.entropy <= math.log(size[1]) + 1e-12).all()
    assert (parts.expected_entropy >= 0).all()
    torch.testing.assert_close(parts.entropy, alignment_uncertainty(samples.mean(0)).entropy)
    torch.testing.assert_close(parts.expected_entropy, alignment_uncertainty(samples.flip(0)).expected_entropy)
    torch.testing.assert_close(
        parts.entropy, torch.distributions.Categorical(samples.mean(0)).entropy(), atol=1e-6, rtol=1e-6
    )


# credible intervals


@PROPERTY
@given(SIZES, SEEDS, st.sampled_from([0.5, 0.9]))
def test_intervals(size, seed, level):
    samples = weights_of(20, *size, seed=seed)
    intervals = credible_intervals(samples, level=level)
    expected = samples.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=samples.dtype), dim=0)
    torch.testing.assert_close(torch.stack([intervals.low, intervals.high]), expected)
    torch.testing.assert_close(intervals.mean, samples.mean(0))
    assert ((intervals.width >= 0) & (intervals.width <= 1)).all()
    wider = credible_intervals(samples, level=0.95)
    assert (wider.low <= intervals.low).all()
    assert (wider.high >= intervals.high).all()


def test_more_numbers_than_quantile_takes():
    samples = torch.full((200, 300, 300), 1 / 300)
    assert samples.numel() > 2**24
    assert credible_intervals(samples).width.eq(0).all()


def test_interval_of_a_known_posterior():
    """A uniform weight: the 90 % interval is (.05, .95)."""
    weights = torch.rand(20_000, 1, 1, dtype=torch.float64)
    intervals = credible_intervals(torch.cat([weights, 1 - weights], -1))
    assert intervals.low[0, 0].item() == pytest.approx(0.05, abs=0.01)
    assert intervals.high[0, 0].item() == pytest.approx(0.95, abs=0.01)


# prior to posterior


@pytest.mark.parametrize(
    ("prior", "posterior", "kl", "variation"),
    [
        ([0.5, 0.5], [0.75, 0.25], 0.75 * math.log(1.5) + 0.25 * math.log(0.5), 0.25),
        ([0.25, 0.75], [0.25, 0.75], 0.0, 0.0),
        ([1.0, 0.0], [0.5, 0.5], math.inf, 0.5),
        ([1.0, 0.0], [1.0, 0.0], 0.0, 0.0),
    ],
    ids=["update", "none", "a prior of zero", "zeros of both"],
)
def test_update_by_hand(prior, posterior, kl, variation):
    update = prior_to_posterior(torch.tensor([prior]), torch.tensor([posterior]))
    torch.testing.assert_close(update.kl, torch.tensor([kl]))
    torch.testing.assert_close(update.total_variation, torch.tensor([variation]))


@PROPERTY
@given(SIZES, SEEDS)
def test_update_properties(size, seed):
    prior, posterior = weights_of(*size, seed=seed), weights_of(3, *size, seed=seed + 1)
    update = prior_to_posterior(prior, posterior)
    q = torch.distributions.Categorical(posterior.mean(0))
    expected = torch.distributions.kl_divergence(q, torch.distributions.Categorical(prior))
    torch.testing.assert_close(update.kl, expected, atol=1e-9, rtol=1e-6)
    # Pinsker's inequality
    assert (update.kl >= 2 * update.total_variation.square() - 1e-12).all()
    assert ((update.total_variation >= 0) & (update.total_variation <= 1)).all()
    same = prior_to_posterior(prior, prior)
    assert same.kl.abs().max() < 1e-12
    assert same.total_variation.max() == 0


# K-max


@pytest.mark.parametrize(
    ("weights", "k", "expected"),
    [
        ([[0.1, 0.4, 0.2, 0.3], [0.0, 1.0, 0.0, 0.0]], 2, [[0.0, 4 / 7, 0.0, 3 / 7], [0.0, 1.0, 0.0, 0.0]]),
        ([[0.0] * 4, [0.25] * 4], 2, [[0.0] * 4, [0.5, 0.5, 0.0, 0.0]]),
        ([[1e-3] * 1000] * 3, 5, [[0.2] * 5 + [0.0] * 995] * 3),
    ],
    ids=["by hand", "none and ties", "many ties"],
)
def test_k_max(weights, k, expected):
    torch.testing.assert_close(k_max(torch.tensor(weights), k), torch.tensor(expected))


@PROPERTY
@given(SIZES, SEEDS, st.integers(1, 6))
def test_k_max_properties(size, seed, k):
    weights = weights_of(2, *size, seed=seed) * (weights_of(2, *size, seed=seed + 1) > 0.05)
    kept = k_max(weights, k)
    assert ((kept > 0).sum(-1) == (weights > 0).sum(-1).clamp(max=k)).all()
    assert kept[weights == 0].eq(0).all()
    torch.testing.assert_close(kept.sum(-1), (weights.sum(-1) > 0).double())
    dropped = weights.masked_fill(kept > 0, 0).amax(-1)
    smallest = weights.masked_fill(kept == 0, math.inf).amin(-1)
    assert (dropped <= smallest).all()
    torch.testing.assert_close(k_max(kept, k), kept)


def test_k_max_gradients_and_half_precision():
    weights = weights_of(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: k_max(x, 2), weights)
    assert k_max(weights_of(2, 4).half(), 2).dtype == torch.float32
    rows_of_zeros = torch.zeros(1, 3, requires_grad=True)
    k_max(rows_of_zeros, 2).sum().backward()
    assert rows_of_zeros.grad.isfinite().all()


# bad input


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: alignment_uncertainty(HALVES / 2), ValueError, "weights .* sum to 0.5, expected 1; leave out padded"),
        (lambda: alignment_uncertainty([1.0]), TypeError, "weights have type list"),
        (lambda: credible_intervals(HALVES), ValueError, r"samples have shape \(1, 2\), expected \[S, M, N\]"),
        (lambda: credible_intervals(HALVES[None]), ValueError, r"samples hold 1 sample\(s\), expected at least 2"),
        (lambda: credible_intervals(HALVES.expand(2, 1, 2), level=1.0), ValueError, "level is 1.0, expected .* in"),
        (lambda: prior_to_posterior(HALVES, HALVES.expand(2, 2)), ValueError, r"\(1, 2\), posterior \(2, 2\)"),
        (lambda: prior_to_posterior(HALVES / 2, HALVES), ValueError, "prior of a target word sum to 0.5, expected 1"),
        (lambda: prior_to_posterior(HALVES, 2 * HALVES), ValueError, "posterior of a target word sum to 2"),
        (lambda: k_max(HALVES, 0), ValueError, "k is 0, expected at least 1"),
        (lambda: k_max(HALVES, 1.0), TypeError, "k is 1.0, expected an int"),
        (lambda: k_max(-HALVES, 1), ValueError, "an entry that is below 0, infinite or NaN"),
        (lambda: k_max(HALVES * math.nan, 1), ValueError, "an entry that is below 0, infinite or NaN"),
        (lambda: k_max(HALVES * math.inf, 1), ValueError, "an entry that is below 0, infinite or NaN"),
        (lambda: k_max(HALVES[:, :0], 1), ValueError, r"shape \(1, 0\), expected \[..., N\] with N at least 1"),
        (lambda: credible_intervals(torch.ones(3, 4, 2)), ValueError, "the samples of a graph, .* to edge_intervals"),
        (lambda: k_max(HALVES.long(), 1), TypeError, "weights have dtype torch.int64"),
    ],
)  # fmt: skip
def test_wrong_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
