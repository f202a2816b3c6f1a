"""Checks and sums that classes and alignments share."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from pyro_attention._checks import as_float

__all__ = ["ROUNDING", "check_choice", "check_floats", "check_samples", "equal_tailed", "seen_type", "split_entropy"]

ROUNDING = 1e-2  # weights and sums that were computed in half precision may be off by nearly as much


def seen_type(value: object) -> str:
    """What an error says of a value of the wrong type: its dtype, or its type where it is no tensor."""
    return f"dtype {value.dtype}" if isinstance(value, Tensor) else f"type {type(value).__name__}"


def check_floats(name: str, value: object, *, verb: str = "have") -> None:
    """Raise TypeError unless a value is a floating-point tensor."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise TypeError(f"{name} {verb} {seen_type(value)}, expected a floating-point tensor")


def check_choice(name: str, value: object, options: Any) -> None:
    """Raise ValueError unless a value is one of the texts of a ``Literal``."""
    if value not in get_args(options):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(get_args(options))}")


def check_samples(name: str, value: Tensor, *, axes: str, min_samples: int, remedy: str, least: int = 1) -> Tensor:
    """Raise unless a tensor holds floats ``[S, ., .]``, or ``[., .]`` where ``min_samples`` is 0.

    ``axes`` names the last two dimensions, the last of which has at least ``least`` entries; ``remedy`` says what to
    do about another number of dimensions. What is returned has no graph, is in at least float32, and has S = 1 where
    there was no samples dimension.
    """
    check_floats(name, value)
    shape = tuple(value.shape)
    expected = f"[S, {axes}]" if min_samples else f"[{axes}] or [S, {axes}]"
    if len(shape) not in ((3,) if min_samples else (2, 3)):
        raise ValueError(f"{name} have shape {shape}, expected {expected}; {remedy}")
    if value.numel() == 0 or shape[-1] < least:
        raise ValueError(
            f"{name} have shape {shape}, expected {expected} with no dimension of zero, the last at least {least}"
        )
    if len(shape) == 3 and shape[0] < min_samples:
        raise ValueError(f"{name} hold {shape[0]} sample(s), expected at least {min_samples}; draw more")
    checked = as_float(value.detach())
    return checked if len(shape) == 3 else checked.unsqueeze(0)


def equal_tailed(samples: Tensor, level: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean of samples ``[S, ...]`` and the ends of their equal-tailed intervals, each ``[...]``."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a probability in (0, 1)")
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=samples.dtype, device=samples.device)
    flat = samples.flatten(1)
    # torch.quantile takes no more than 2**24 numbers
    parts = [part.quantile(tails, dim=0) for part in flat.split(max(1, 2**24 // len(flat)), dim=1)]
    low, high = torch.cat(parts, 1).unflatten(1, samples.shape[1:])
    return samples.mean(0), low, high


def split_entropy(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy of the mean of distributions ``[S, ..., N]``, mean entropy, and their difference, each ``[...]``."""
    exact = samples.double()  # a difference of nearly equal entropies, where attention matters little
    total = torch.special.entr(exact.mean(0)).sum(-1)
    expected = torch.special.entr(exact).sum(-1).mean(0)
    difference = (total - expected).clamp_min(0.0)
    return total.to(samples.dtype), expected.to(samples.dtype), difference.to(samples.dtype)
