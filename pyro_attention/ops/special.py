"""Special functions of the exponential, and draws, of Gamma distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_attention.ops.noise import uniform

__all__ = ["digamma_exp", "lgamma_exp", "log_standard_gamma", "trigamma_exp"]


def lgamma_exp(x: Tensor) -> Tensor:
    r""":math:`\log\Gamma(e^x) = \log\Gamma(1 + e^x) - x`, finite also where :math:`e^x` underflows.

    Example:
        >>> lgamma_exp(torch.tensor([-1000.0, 0.0])).tolist()
        [1000.0, 0.0]
    """
    return torch.lgamma(1 + x.exp()) - x


def digamma_exp(x: Tensor) -> Tensor:
    r""":math:`\psi(e^x) = \psi(1 + e^x) - e^{-x}`."""
    return torch.digamma(1 + x.exp()) - (-x).exp()


def trigamma_exp(x: Tensor) -> Tensor:
    r""":math:`\psi'(e^x) = \psi'(1 + e^x) + e^{-2x}`."""
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
    boosted = torch._standard_gamma(concentration + 1).log()
    draws = uniform(concentration.shape, dtype=concentration.dtype, device=concentration.device)
    # 1 / a, kept so small that the product is finite
    largest = math.log(torch.finfo(boosted.dtype).max) - 8
    return boosted + draws.log_() * (-log_concentration).clamp(max=largest).exp()
