"""Special functions of the exponential, and draws, of Gamma distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_attention._checks import in_transform
from pyro_attention._compat import standard_gamma
from pyro_attention._typing import Context
from pyro_attention.ops.noise import uniform

__all__ = ["digamma1p", "digamma_exp", "lgamma1p", "lgamma_exp", "log_standard_gamma", "trigamma_exp"]


# Interpolations on [0, 1] at Chebyshev points, the highest power first; they are right to 4e-7 in float32.
_SMALL_LGAMMA = (
    -0.00369554304, 0.0228734649, -0.0666785827, 0.127206071, -0.191535834,
    0.266754308, -0.400135233, 0.822425794, -0.577214442, -6.08537068e-09,
)  # fmt: skip
_SMALL_DIGAMMA = (
    0.0232987802, -0.139917502, 0.388350965, -0.682764914, 0.898133937,
    -1.00854877, 1.07827779, -1.20175547, 1.64492516, -0.577215621,
)  # fmt: skip


def _polynomial(a: Tensor, coefficients: tuple[float, ...]) -> Tensor | None:
    """Return the value of a polynomial for many numbers in [0, 1], as of a softmax but for rounding; else None.

    A few vectorized passes, in place; torch's functions run element by element on a CPU and cost several times as much.
    """
    if not a.is_cpu or a.dtype != torch.float32 or a.numel() < 2**10 or a.max() > 1.01:
        return None
    value = a * coefficients[0]
    for coefficient in coefficients[1:-1]:
        value.add_(coefficient).mul_(a)
    return value.add_(coefficients[-1])


def lgamma1p(a: Tensor) -> Tensor:
    """Return the logarithm of the Gamma function of 1 + a, for a >= 0; without gradient."""
    small = _polynomial(a, _SMALL_LGAMMA)
    return (1 + a).lgamma_() if small is None else small


def digamma1p(a: Tensor) -> Tensor:
    """Return the digamma function of 1 + a, for a >= 0; without gradient."""
    small = _polynomial(a, _SMALL_DIGAMMA)
    return (1 + a).digamma_() if small is None else small


class _LGammaExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return lgamma1p(x.exp()).sub_(x)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        a = x.exp()
        if torch.is_grad_enabled():  # for a second derivative
            gradient: Tensor = torch.digamma(1 + a) * grad * a - grad
            return gradient
        return digamma1p(a).mul_(a).sub_(1).mul_(grad)


_lgamma_exp: Callable[..., Tensor] = _LGammaExp.apply


def lgamma_exp(x: Tensor) -> Tensor:
    r"""Return :math:`\log\Gamma(e^x) = \log\Gamma(1 + e^x) - x`, finite also where :math:`e^x` underflows.

    Example:
        >>> lgamma_exp(torch.tensor([-1000.0, 0.0])).tolist()
        [1000.0, 0.0]
    """
    if in_transform(x):  # which wants another kind of function
        return torch.lgamma(1 + x.exp()) - x
    return _lgamma_exp(x)


def digamma_exp(x: Tensor) -> Tensor:
    r"""Return :math:`\psi(e^x) = \psi(1 + e^x) - e^{-x}`."""
    return torch.digamma(1 + x.exp()) - (-x).exp()


def trigamma_exp(x: Tensor) -> Tensor:
    r"""Return :math:`\psi'(e^x) = \psi'(1 + e^x) + e^{-2x}`."""
    return torch.polygamma(1, 1 + x.exp()) + (-2 * x).exp()


def log_standard_gamma(concentration: Tensor, log_concentration: Tensor) -> Tensor:
    r"""Draw ``log G``, ``G ~ Gamma(concentration, 1)``, with pathwise gradients at any concentration.

    .. math:: \log G(a) = \log G(a + 1) + \log(U) / a

    torch's own sampler rounds ``G`` to the smallest float when ``a`` is small (at ``a = 1e-4`` the mean
    of its logarithm is wrong by a factor of 15); here the logarithm is never taken of such a number.

    Args:
        concentration: ``a > 0``; one draw per entry.
        log_concentration: ``log a``, given apart because ``a`` itself may underflow.

    Returns:
        Tensor of the broadcast shape; differentiable in both arguments.

    Example:
        >>> a = torch.full((4,), 1e-4)
        >>> bool((log_standard_gamma(a, a.log()) < 0).all())
        True

    Source: Marsaglia and Tsang (2000), section 8 (the boost for shapes below one).
    """
    concentration, log_concentration = torch.broadcast_tensors(concentration, log_concentration)
    boosted = standard_gamma(concentration + 1).log()
    draws = uniform(concentration.shape, dtype=concentration.dtype, device=concentration.device)
    # 1 / a, kept so small that the product is finite
    largest = math.log(torch.finfo(boosted.dtype).max) - 8
    return boosted + draws.log_() * (-log_concentration).clamp(max=largest).exp()
