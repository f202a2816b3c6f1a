"""Random draws in log space."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["log_exponential", "log_standard_gamma"]

# A float32 uniform has 24 random bits; zero stands for everything below half a step.
_SMALLEST_UNIFORM = 2.0**-25


def log_exponential(
    shape: torch.Size | tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw the logarithm of standard exponential variables, ``log(-log U)``.

    On a CPU this is several times faster than ``torch.empty(shape).exponential_().log()``, whose
    generator runs on one thread.

    Args:
        shape: Shape of the result.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: Device of the result.

    Returns:
        Tensor of the given shape, without gradient.

    Example:
        >>> log_exponential((2, 3)).shape
        torch.Size([2, 3])
    """
    uniform = torch.rand(shape, dtype=dtype, device=device)
    return uniform.clamp_(min=_SMALLEST_UNIFORM).log_().neg_().log_()


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
    uniform = torch.rand_like(concentration).clamp_(min=_SMALLEST_UNIFORM)
    # 1 / a, kept so small that the product is finite
    largest = math.log(torch.finfo(boosted.dtype).max) - 8
    return boosted + uniform.log_() * (-log_concentration).clamp(max=largest).exp()
