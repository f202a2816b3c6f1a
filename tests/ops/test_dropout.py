"""Dropout has torch's distribution and gradient."""

import pytest
import torch

from pyro_attention.ops.noise import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_drops_the_right_fraction_and_keeps_the_mean(p, dtype):
    torch.manual_seed(0)
    count = 400_000
    y = Dropout(p)(torch.ones(count, dtype=dtype))
    assert y.dtype == dtype
    kept = (y != 0).double().mean().item()
    assert abs(kept - (1 - p)) < 4 * (p * (1 - p) / count) ** 0.5
    assert torch.equal(y[y != 0].unique(), torch.tensor([1 / (1 - p)], dtype=dtype))


def test_gradient_passes_where_the_value_does():
    torch.manual_seed(0)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient * x, y)
    assert 0 < (gradient == 0).sum() < 50


def test_entries_are_dropped_independently():
    torch.manual_seed(0)
    x = Dropout(0.5)(torch.ones(1000, 200)).bool().double() - 0.5
    correlation = (x.T @ x / 250).fill_diagonal_(0)
    assert correlation.abs().max() < 6 / 1000**0.5


@pytest.mark.parametrize("make", [lambda: Dropout(0.5).eval(), lambda: Dropout(0.0)], ids=["eval", "p=0"])
def test_identity(make):
    x = torch.randn(5)
    assert torch.equal(make()(x), x)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_probability_is_checked(p):
    with pytest.raises(ValueError, match=f"dropout is {p}, expected a probability"):
        Dropout(p)
