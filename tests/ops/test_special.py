import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from pyro_attention.ops.special import lgamma_exp


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("largest", "count"), [(12, 400), (0, 2**14)])
def test_value_and_gradient(dtype, tolerance, largest, count):
    x = torch.linspace(-60, largest, count, dtype=dtype).requires_grad_()
    value = lgamma_exp(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    a = x.detach().double().exp()
    torch.testing.assert_close(value.detach().double(), torch.lgamma(a), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(gradient.double(), a * torch.digamma(a), rtol=tolerance, atol=tolerance)
    # where the exponential underflows
    small = torch.full((1,), -1000.0, dtype=dtype, requires_grad=True)
    value = lgamma_exp(small)
    assert (value.item(), torch.autograd.grad(value, small)[0].item()) == (1000, -1)


def test_second_derivatives_and_inside_a_transform():
    x = torch.linspace(-20, 3, 9, dtype=torch.float64).requires_grad_()
    assert gradcheck(lgamma_exp, x)
    assert gradgradcheck(lgamma_exp, x)
    x = x.detach()
    torch.testing.assert_close(torch.func.vmap(lgamma_exp)(x), lgamma_exp(x))
    expected = torch.autograd.functional.jacobian(lgamma_exp, x).diagonal()
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(lgamma_exp))(x), expected)
