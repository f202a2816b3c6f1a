"""Which implementation a call of multi-head attention takes: dense or blocked."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from pyro_attention.blocked.ops.fused_attention import unfused
from pyro_attention.layers.torch_layer import scores_shape

__all__ = ["Implementation", "check_implementation", "is_blocked", "unsupported"]

Implementation = Literal["dense", "blocked", "auto"]

_MANY_WEIGHTS = 2**25
_MOST_WEIGHTS = 2**31  # 8.6 GB in float32, and dense attention holds several tensors of that size


def check_implementation(implementation: str) -> None:
    """Raise ValueError unless there is such an implementation.

    Example:
        >>> check_implementation("fast")
        Traceback (most recent call last):
        ValueError: implementation is 'fast', expected 'dense', 'blocked' or 'auto'
    """
    if implementation not in get_args(Implementation):
        raise ValueError(f"implementation is '{implementation}', expected 'dense', 'blocked' or 'auto'")


def is_blocked(
    implementation: Implementation, q: Tensor, k: Tensor, v: Tensor, *, site: str, obstacle: str | None, wanted: bool
) -> bool:
    """Whether a call is blocked, with a warning where that is slow or where "auto" cannot choose it.

    An obstacle keeps it from being blocked: a ValueError where the implementation is "blocked", or "auto" and there are
    too many weights to hold. If the weights are ``wanted``, there is no warning that they are held.
    """
    check_implementation(implementation)
    if implementation == "dense" or (implementation == "auto" and torch.compiler.is_exporting()):  # of any length
        return False
    shape = scores_shape(q, k)
    weights = shape.numel()
    if implementation == "auto" and weights < _MANY_WEIGHTS:
        return False
    required = implementation == "blocked" or weights > _MOST_WEIGHTS
    if obstacle is not None:
        if implementation == "blocked":
            raise unsupported(site, obstacle)
        if required:
            gigabytes = 1e-9 * weights * max(4, q.dtype.itemsize)  # never in half precision
            raise ValueError(
                f"site '{site}': weights of shape {tuple(shape)} would take {gigabytes:.1f} GB in dense attention, "
                f"several times over, and blocked attention does not support {obstacle}; or use "
                f"implementation='dense', which computes them all the same"
            )
        reason = f"does not support {obstacle}"
    else:
        slow = _slow(q, k, v)
        if slow is None:
            return True
        if required:
            _warn_once(f"site '{site}': blocked attention runs without the fused kernels, many times slower: {slow}")
            return True
        reason = f"would be slow without the fused kernels: {slow}"
    if not wanted:
        _warn_once(
            f"site '{site}': implementation='auto' keeps a large call dense, as blocked attention {reason}; change "
            f"that, or choose implementation='dense'"
        )
    return False


def unsupported(site: str, obstacle: str) -> ValueError:
    """The error of a layer that should be blocked and cannot."""
    return ValueError(
        f"site '{site}': implementation='blocked' does not support {obstacle}; or use implementation='dense'"
    )


def _slow(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why a blocked call is slower than its device allows; None on a CPU, where blocks are in plain PyTorch anyway."""
    return unfused(q, k, v) if q.is_cuda else None


@cache  # by the message: a training loop would repeat it at every step
def _warn_once(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)
