"""The recomputable noise follows its distributions, is uncorrelated, and depends on seed and position alone."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_attention.blocked.ops.blocked_attention import blocked_attention as attend
from pyro_attention.blocked.ops.counter_noise import CounterNoise
from tests.helpers import assert_mean

SHAPE = (2, 300, 256)


def uniform(seed, shape=SHAPE):
    """The uniform numbers behind the draws."""
    return torch.special.ndtr(CounterNoise("normal", seed, shape).block(dtype=torch.float64))


def assert_uncorrelated(a, b):
    assert_mean((12 * (a - 0.5) * (b - 0.5)).flatten(), 0)


def test_uniform():
    u = uniform(0)
    assert 0 < u.min() < u.max() < 1
    assert_mean(u.flatten(), 1 / 2)
    assert_mean((u.flatten() - 1 / 2) ** 2, 1 / 12)
    for part in (u[0, 0], u[1, :, 3], u.flatten()[::7]):
        assert stats.kstest(part.numpy(), "uniform").pvalue > 1e-4
    for a, b in ((u[..., 1:], u[..., :-1]), (u[:, 1:], u[:, :-1]), (u[0], u[1])):
        counts, _, _ = np.histogram2d(a.flatten().numpy(), b.flatten().numpy(), bins=32, range=[[0, 1], [0, 1]])
        assert stats.chisquare(counts.flatten()).pvalue > 1e-4
        assert_uncorrelated(a, b)


def test_ends_and_lower_bits():
    """What a test of all numbers together would not see: 2^-9 at either end, and the bits behind the tenth."""
    u = uniform(8, (2, 1000, 1000)).flatten()
    for end in (u[u < 2**-9], 1 - u[u > 1 - 2**-9]):
        assert stats.kstest(2**9 * end.numpy(), "uniform").pvalue > 1e-4
    counts = torch.bincount((u * 2**23).long() % 2**13, minlength=2**13)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


def test_avalanche():
    """A bit of the columns' offsets that flips flips each of the 23 bits with a chance of one half."""
    noise = CounterNoise("normal", 4, (1, 256, 256))
    columns = noise.keys[2]
    before, errors = (noise._uniform(*3 * (slice(None),)).double() * 2**23).long(), []
    for bit in range(32):
        noise._columns = columns ^ torch.tensor(1 << bit).to(torch.int32)
        flips = before ^ (noise._uniform(*3 * (slice(None),)).double() * 2**23).long()
        errors += [((flips >> place) & 1).double().mean() - 0.5 for place in range(23)]
    assert torch.stack(errors).abs().max() < 5 * 0.5 / math.sqrt(before.numel())


@pytest.mark.parametrize(
    ("kind", "mean", "variance", "cdf"),
    [("log_exponential", -np.euler_gamma, math.pi**2 / 6, stats.gumbel_l.cdf), ("normal", 0, 1, stats.norm.cdf)],
)
def test_distributions(kind, mean, variance, cdf):
    draws, doubles = (CounterNoise(kind, 1, SHAPE).block(dtype=dtype) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(draws.double(), doubles, rtol=1e-4, atol=1e-5)
    assert draws.isfinite().all()
    assert_mean(draws.flatten(), mean)
    assert_mean((draws.flatten() - mean) ** 2, variance)
    assert stats.kstest(draws.flatten()[:50_000].numpy(), cdf).pvalue > 1e-4


@pytest.mark.parametrize("other", [4, -3, 3 + 2**31, 3 + 2**32, 3 + 2**63])
def test_seeds_are_uncorrelated(other):
    assert_uncorrelated(uniform(3), uniform(other))


def test_all_pairs_of_rows_and_of_columns():
    """The largest of 125 thousand correlations, for every bit: sums of single bits would show what moments hide."""
    bits = (uniform(5, (1, 500, 500))[0] * 2**23).long()
    for bit in range(23):
        signs = ((bits >> bit) & 1).double() * 2 - 1
        for products in (signs @ signs.T, signs.T @ signs):
            assert (products.triu(1) / math.sqrt(500)).abs().max() < 6.5, bit


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5, -1])
def test_no_two_columns_or_rows_are_the_same(seed):
    """Two with one offset would share their noise in every row; chance alone would give five such pairs."""
    columns = CounterNoise("normal", seed, (1, 1, 200_000)).keys[2]
    assert len(columns.unique()) == 200_000
    assert stats.kstest(columns.double().numpy(), stats.uniform(-(2.0**31), 2.0**32).cdf).pvalue > 1e-4
    offsets, multipliers, _ = CounterNoise("normal", seed, (8, 25_000, 1)).keys
    assert (multipliers % 2 != 0).all()
    assert len(torch.stack([offsets.flatten(), multipliers.flatten()]).unique(dim=1).T) == 200_000


def test_a_block_is_a_part_of_the_table():
    table = CounterNoise("normal", 7, (3, 20, 30))
    expected = table.block()
    for part in ((slice(1, 3), slice(5, 9), slice(0, 1)), (slice(0, 1), slice(19, 20), slice(7, 30))):
        assert torch.equal(table.block(*part), expected[part])
    # more columns, or more slices behind, change nothing
    assert torch.equal(CounterNoise("normal", 7, (4, 20, 40)).block()[:3, :, :30], expected)
    assert torch.equal(CounterNoise("normal", 7 + 2**64, (3, 20, 30)).block(), expected)


def test_devices_that_know_seed_and_positions_draw_the_same_noise() -> None:
    """Each of four devices has a quarter of the queries, and sees a quarter of keys and values at a time."""
    heads, positions, block, seed = 2, 32, 8, 7
    q, k, v = torch.randn(3, heads, positions, 5, dtype=torch.float64)
    expected, _ = attend(q, k, v, noise="log_exponential", noise_scale=torch.tensor(0.3), seed=seed)
    found = []
    for device in range(4):
        mine = slice(device * block, (device + 1) * block)
        noise = CounterNoise("log_exponential", seed, (heads, positions, positions))
        sums, contexts = [], []
        for step in range(4):
            start = (device + step) % 4 * block
            theirs = slice(start, start + block)
            scores = q[:, mine] @ k[:, theirs].mT
            scores += 0.3 * noise.block(slice(None), mine, theirs, dtype=torch.float64)
            sums.append(scores.logsumexp(-1))
            contexts.append(scores.softmax(-1) @ v[:, theirs])
        shares = torch.stack(sums).softmax(0)
        found.append((shares[..., None] * torch.stack(contexts)).sum(0))
    torch.testing.assert_close(torch.cat(found, 1), expected)
