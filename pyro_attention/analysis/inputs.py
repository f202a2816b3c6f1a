"""Checks and sums that classes and alignments share."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from pyro_attention._checks import as_float

__all__ = ["ROUNDING", "check_choice", "check_floats", "check_level", "check_samples", "equal_tailed"]

ROUNDING = 1e-2  # weights and sums that were computed in half precision may be off by nearly as much


def check_floats(name: str, value: object) -> None:
    """Raise TypeError unless a value is a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        actual = f"dtype {value.dtype}" if isinstance(value, Tensor) else f"type {type(value).__name__}"
        raise TypeError(f"{name}: {actual}, expected a floating-point tensor")


def check_choice(name: str, value: object, options: object) -> None:
    """Raise ValueError unless a value is one of the texts of a ``Literal``."""
    if value not in get_args(options):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(get_args(options))}")


def check_samples(name: str, value: Tensor, *, axes: str, min_samples: int = 0) -> Tensor:
    """Raise unless a tensor holds floats ``[S, ., .]``, or ``[., .]`` where ``min_samples`` is 0; ``axes`` names these.

    What is returned has no graph, is in at least float32, and has S = 1 where there was no samples dimension.
    """
    check_floats(name, value)
    shape = tuple(value.shape)
    enough = len(shape) in (2, 3) if min_samples == 0 else len(shape) == 3 and shape[0] >= min_samples
    if not enough or value.numel() == 0:
        expected = f"[S, {axes}] with at least {min_samples} samples" if min_samples else f"[{axes}] or [S, {axes}]"
        raise ValueError(
            f"{name} have shape {shape}, expected {expected}, not empty; choose or average other dimensions"
        )
    checked = as_float(value.detach())
    return checked if len(shape) == 3 else checked.unsqueeze(0)


def check_level(level: float) -> None:
    """Raise ValueError unless the level of an interval is a probability between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a probability in (0, 1), such as 0.95")


def equal_tailed(samples: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean of samples ``[S, ...]`` and the ends of their equal-tailed intervals, each ``[...]``."""
    check_level(level)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=samples.dtype, device=samples.device)
    flat = samples.flatten(1)
    # torch.quantile takes no more than 2**24 numbers
    parts = [part.quantile(tails, dim=0) for part in flat.split(max(1, 2**24 // len(flat)), dim=1)]
    low, high = torch.cat(parts, 1).unflatten(1, samples.shape[1:])
    return samples.mean(0), low, high
