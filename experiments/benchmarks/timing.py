"""Interleaved timing: machines drift, so compared things take turns and only their ratios are quoted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

__all__ = ["Timing", "interleave"]


@dataclass(frozen=True)
class Timing:
    """Times of one contestant.

    Attributes:
        median: Median time of a call in milliseconds.
        low: 10 % quantile.
        high: 90 % quantile.
        ratio: Median over rounds of its time divided by the reference's time in the same round.
    """

    median: float
    low: float
    high: float
    ratio: float


def interleave(
    contestants: Mapping[str, Callable[[], object]], *, rounds: int = 50, warm_up: int = 5
) -> dict[str, Timing]:
    """Time the contestants in turn; the first one is the reference of the ratios.

    Args:
        contestants: Calls by name.
        rounds: Counted rounds.
        warm_up: Rounds ahead that are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, call in contestants.items():
            _synchronize()
            start = time.perf_counter()
            call()
            _synchronize()
            if turn >= warm_up:
                times[name].append(1e3 * (time.perf_counter() - start))
    samples = {name: torch.tensor(values, dtype=torch.float64) for name, values in times.items()}
    reference = next(iter(samples.values()))
    return {
        name: Timing(
            median=values.median().item(),
            low=values.quantile(0.1).item(),
            high=values.quantile(0.9).item(),
            ratio=(values / reference).median().item(),
        )
        for name, values in samples.items()
    }


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
