"""The random draws in log space follow their distributions, to the ends of what a float holds."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pyro_attention.ops.noise import log_exponential, uniform
from pyro_attention.ops.special import log_standard_gamma
from tests.helpers import assert_mean

DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("shape", [(7,), (101, 501), (3, 2**18)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_uniform_distribution(shape, dtype):
    torch.manual_seed(3)
    x = uniform(shape, dtype=dtype)
    assert x.shape == shape
    assert x.dtype == dtype
    assert ((x > 0) & (x < 1)).all()
    x = x.double().flatten()
    if len(x) > 1000:
        assert_mean(x, 1 / 2)
        assert_mean((x - 0.5) ** 2, 1 / 12)
        assert_mean((x[1:] - 0.5) * (x[:-1] - 0.5), 0)  # neighbors come from one 64-bit number
        assert_mean((x[2:] - 0.5) * (x[:-2] - 0.5), 0)
    assert stats.kstest(x.numpy(), stats.uniform.cdf).pvalue > 1e-4
    torch.manual_seed(3)
    assert torch.equal(x, uniform(shape, dtype=dtype).double().flatten())


@pytest.mark.parametrize(("bits", "expected"), [(0, 2**-24), (-1, 1 - 2**-24)])
def test_ends_of_many_uniform_numbers(bits, expected, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "random_", lambda self: self.fill_(bits))
    assert uniform((2**15,)).unique().tolist() == [expected]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_exponential_moments(dtype):
    x = log_exponential((1_000_000,), dtype=dtype)
    assert x.dtype == dtype
    assert x.isfinite().all()
    assert_mean(x, -np.euler_gamma)
    assert_mean((x + np.euler_gamma) ** 2, math.pi**2 / 6)
    assert_mean(x.exp(), 1)
    assert stats.kstest(x[:50_000].numpy(), stats.gumbel_l.cdf).pvalue > 1e-4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_exponential_extremes(dtype, monkeypatch):
    """The smallest and the largest numbers torch.rand can return."""
    ends = torch.tensor([0.0, 1 - torch.finfo(dtype).eps / 2], dtype=dtype)
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: ends.clone())
    largest, smallest = log_exponential((2,), dtype=dtype).tolist()
    assert largest == pytest.approx(math.log(25 * math.log(2)))  # zero counts as 2^-25
    assert smallest == pytest.approx(math.log(torch.finfo(dtype).eps / 2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_exponential_shape_and_seed(dtype):
    torch.manual_seed(1)
    first = log_exponential((2, 3), dtype=dtype)
    torch.manual_seed(1)
    assert torch.equal(first, log_exponential(torch.Size([2, 3]), dtype=dtype))
    assert first.shape == (2, 3)
    assert not first.requires_grad


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [1e-4, 0.02, 0.7, 1.0, 5.0, 300.0])
def test_log_standard_gamma_distribution(shape, dtype):
    a = torch.full((400_000,), shape, dtype=dtype)
    x = log_standard_gamma(a, a.log())
    assert x.dtype == dtype
    assert x.isfinite().all()
    assert_mean(x, torch.digamma(torch.tensor(shape, dtype=torch.float64)))
    assert stats.kstest(x[:50_000].numpy(), stats.loggamma(shape).cdf).pvalue > 1e-4


def test_log_standard_gamma_needs_only_the_logarithm_of_a_small_shape():
    """In the limit a * log G is the logarithm of a uniform."""
    log_a = torch.full((200_000,), -80.0).requires_grad_()
    x = log_standard_gamma(torch.zeros_like(log_a), log_a)
    assert_mean(x.double() * math.exp(-80), -1)
    x.sum().backward()
    assert_mean(log_a.grad.double() * math.exp(-80), 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_log_standard_gamma_broadcasts(dtype):
    a = torch.tensor([0.5, 2.0], dtype=dtype, requires_grad=True)
    x = log_standard_gamma(a, a.log().expand(3, 2))
    assert x.shape == (3, 2)
    x.sum().backward()
    assert a.grad.shape == (2,)
    assert (a.grad > 0).all()
