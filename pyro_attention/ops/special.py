"""Special functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["lgamma1p"]


def _digamma1p(a: Tensor) -> Tensor:
    r"""Digamma of 1 + a for a >= 0: six steps of its recurrence, in pairs, then the asymptotic series.

    A few vectorised passes, in place; torch's digamma runs element by element on a CPU and costs several times as
    much.
    """
    y = a + 7
    product = a * y
    recurrence = (product + 6).reciprocal_()
    recurrence.add_((product + 10).reciprocal_()).add_(product.add_(12).reciprocal_()).mul_(a + y)
    z = y.square().reciprocal_()
    series = z * (-691 / 32760)
    for coefficient in (1 / 132, -1 / 240, 1 / 252, -1 / 120, 1 / 12):
        series.add_(coefficient).mul_(z)
    return recurrence.add_(series).add_(y.reciprocal(), alpha=0.5).neg_().add_(y.log_())


class _LGamma1p(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return torch.lgamma(1 + a)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return grad * _digamma1p(a)


_lgamma1p: Callable[..., Tensor] = _LGamma1p.apply


def lgamma1p(a: Tensor) -> Tensor:
    r""":math:`\log\Gamma(1 + a)` for a >= 0, with a fast gradient.

    Example:
        >>> lgamma1p(torch.tensor(3.0)).exp().item()
        6.0

    Source: Abramowitz and Stegun, 6.3.5 and 6.3.18, for the gradient.
    """
    return _lgamma1p(a)
