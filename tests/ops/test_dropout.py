"""Dropout has torch's distribution and gradient."""

import pytest
import torch

from pyro_attention.ops.noise import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("p", [0.1, 0.6])
def test_drops_the_right_fraction_independently_and_keeps_the_mean(p, dtype):
    x = torch.ones(1000, 200, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    assert y.dtype == dtype
    kept = (y != 0).double()
    assert abs(kept.mean().item() - (1 - p)) < 4 * (p * (1 - p) / x.numel()) ** 0.5
    assert torch.equal(y[y != 0].unique(), torch.tensor([1 / (1 - p)], dtype=dtype))
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y)
    centered = (kept - (1 - p)) / (p * (1 - p)) ** 0.5
    assert (centered.T @ centered / 1000).fill_diagonal_(0).abs().max() < 6 / 1000**0.5
    assert torch.equal(Dropout(p).eval()(x), x)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_probability_is_checked(p):
    with pytest.raises(ValueError, match=f"dropout is {p}, expected a probability"):
        Dropout(p)
