"""The recomputable noise follows its distributions, is uncorrelated, and depends on seed and position alone."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_attention.blocked.ops.counter_noise import CounterNoise
from tests.helpers import assert_mean

SHAPE = (2, 600, 500)


def uniform(seed, shape=SHAPE):
    """The uniform numbers behind the draws."""
    return torch.special.ndtr(CounterNoise("normal", seed, shape).dense(dtype=torch.float64))


def standard(seed, shape=SHAPE):
    """The same with mean zero and variance one."""
    return (uniform(seed, shape) - 0.5) * math.sqrt(12)


def assert_uncorrelated(a, b):
    assert_mean((a * b).flatten(), 0)


@pytest.mark.parametrize("part", [(0, 0), (1, slice(None), 3), None], ids=["row", "column", "all over"])
def test_uniform(part):
    u = uniform(0)
    assert 0 < u.min() < u.max() < 1
    assert_mean(u.flatten(), 1 / 2)
    assert_mean((u.flatten() - 1 / 2) ** 2, 1 / 12)
    numbers = u.flatten()[::7] if part is None else u[part]
    assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distributions(dtype):
    logs = CounterNoise("log_exponential", 1, SHAPE).dense(dtype=dtype).flatten()
    normals = CounterNoise("normal", 1, SHAPE).dense(dtype=dtype).flatten()
    assert logs.dtype == normals.dtype == dtype
    assert logs.isfinite().all()
    assert normals.isfinite().all()
    assert_mean(logs, -np.euler_gamma)
    assert_mean((logs + np.euler_gamma) ** 2, math.pi**2 / 6)
    assert_mean(normals, 0)
    assert_mean(normals**2, 1)
    assert_mean(normals**4, 3)
    assert stats.kstest(logs[:50_000].numpy(), stats.gumbel_l.cdf).pvalue > 1e-4
    assert stats.kstest(normals[:50_000].numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("distance", [1, 2, 16, 255])
def test_neighbours_are_uncorrelated(distance):
    z = standard(2)
    assert_uncorrelated(z[..., distance:], z[..., :-distance])
    assert_uncorrelated(z[:, distance:], z[:, :-distance])
    assert_uncorrelated(z[0], z[1])


@pytest.mark.parametrize("other", [4, 2, -3, 3 + 2**31, 3 + 2**32, 3 + 2**63])
def test_seeds_are_uncorrelated(other):
    assert_uncorrelated(standard(3), standard(other))


def test_all_pairs_of_rows_and_of_columns():
    """The largest of 125 thousand correlations, for every bit: sums of single bits would show what moments hide."""
    bits = (uniform(5, (1, 500, 500))[0] * 2**23).long()
    for bit in range(23):
        signs = ((bits >> bit) & 1).double() * 2 - 1
        for products in (signs @ signs.T, signs.T @ signs):
            correlations = products.triu(1) / math.sqrt(500)
            assert correlations.abs().max() < 6.5, bit


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 2**32, 2**63 + 5, -1])
def test_no_two_columns_are_the_same(seed):
    """Two with one offset would share their noise in every row; chance alone would give five such pairs."""
    columns = CounterNoise("normal", seed, (1, 1, 200_000)).keys[2]
    assert len(columns.unique()) == 200_000
    # they are random numbers besides
    assert stats.kstest(columns.double().numpy(), stats.uniform(-(2.0**31), 2.0**32).cdf).pvalue > 1e-4
    signs = (columns[:, None] >> torch.arange(32) & 1).double() * 2 - 1
    assert (signs.mean(0).abs() * math.sqrt(len(signs))).max() < 5
    assert ((signs[1:] * signs[:-1]).mean(0).abs() * math.sqrt(len(signs))).max() < 5


def test_no_two_rows_are_the_same():
    offsets, multipliers, _ = CounterNoise("normal", 4, (8, 25_000, 1)).keys
    assert (multipliers % 2 != 0).all()
    assert len(torch.stack([offsets.flatten(), multipliers.flatten()]).unique(dim=1).T) == 200_000


def test_columns_that_once_shared_their_noise():
    """Of seed 1, when their offsets were drawn independently."""
    noise = CounterNoise("normal", 1, (1, 64, 8192)).dense()[0]
    assert not torch.isclose(noise[:, 2609], noise[:, 5996]).any()


@pytest.mark.parametrize("pair", ["columns", "rows", "slices"])
def test_pairs_fill_the_square_evenly(pair):
    u = uniform(6)
    a, b = {"columns": (u[..., 1:], u[..., :-1]), "rows": (u[:, 1:], u[:, :-1]), "slices": (u[0], u[1])}[pair]
    counts, _, _ = np.histogram2d(a.flatten().numpy(), b.flatten().numpy(), bins=32, range=[[0, 1], [0, 1]])
    assert stats.chisquare(counts.flatten()).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["log_exponential", "normal"])
def test_a_block_is_a_part_of_the_table(kind):
    table = CounterNoise(kind, 7, (3, 20, 30))
    expected = table.dense()
    for slices, rows, columns in ((slice(1, 3), slice(5, 9), slice(0, 1)), (slice(0, 1), slice(19, 20), slice(7, 30))):
        assert torch.equal(table.block(slices, rows, columns), expected[slices, rows, columns])
    # more columns, or more slices behind, change nothing
    assert torch.equal(CounterNoise(kind, 7, (4, 20, 40)).dense()[:3, :, :30], expected)
    assert torch.equal(CounterNoise(kind, 7 + 2**64, (3, 20, 30)).dense(), expected)
    assert not torch.equal(CounterNoise(kind, 8, (3, 20, 30)).dense(), expected)


@pytest.mark.parametrize("kind", ["log_exponential", "normal"])
def test_both_precisions_hold_the_same_draws(kind):
    table = CounterNoise(kind, 9, (1, 50, 50))
    torch.testing.assert_close(table.dense().double(), table.dense(dtype=torch.float64), rtol=1e-4, atol=1e-5)


def test_unknown_kind():
    with pytest.raises(ValueError, match="kind is 'cauchy', expected one of 'log_exponential', 'normal'"):
        CounterNoise("cauchy", 0, (1, 1, 1))
