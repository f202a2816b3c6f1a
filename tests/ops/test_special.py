import pytest
import torch

from pyro_attention.ops.special import lgamma_exp


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_value_and_gradient(dtype, tolerance):
    x = torch.linspace(-60, 12, 400, dtype=dtype).requires_grad_()
    value = lgamma_exp(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    a = x.detach().double().exp()
    torch.testing.assert_close(value.detach().double(), torch.lgamma(a), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), a * torch.digamma(a), rtol=tolerance, atol=tolerance)
    # where the exponential underflows
    small = torch.full((1,), -1000.0, dtype=dtype, requires_grad=True)
    value = lgamma_exp(small)
    assert (value.item(), torch.autograd.grad(value, small)[0].item()) == (1000, -1)
