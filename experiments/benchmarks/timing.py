"""Interleaved timing: machines drift, so compared things take turns and only their ratios are quoted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

__all__ = ["Timing", "backward_step", "interleave", "threads_text", "training_step", "with_spread"]

Name = TypeVar("Name", bound=str)


@dataclass(frozen=True)
class Timing:
    """Times of one contestant: median, 10 % and 90 % quantile over rounds of a call's time in milliseconds.

    Beside them those of its ratio, the time divided by that of the reference in the same round.
    """

    median: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float

    def quantities(self, *, peak_mb: float) -> dict[str, float]:
        """Time and ratio with its spread for metrics.json, and the memory that was measured beside them."""
        ratios = {"ratio": self.ratio, "ratio_low": self.ratio_low, "ratio_high": self.ratio_high}
        return {"ms": self.median, **ratios, "peak_mb": peak_mb}


def with_spread(numbers: Mapping[str, float], name: str) -> str:
    """A number, with its quantiles ``NAME_low`` and ``NAME_high`` where there are any.

    Example:
        >>> with_spread({"ratio": 0.93, "ratio_low": 0.83, "ratio_high": 1.01}, "ratio")
        '0.93 (0.83 - 1.01)'
    """
    low, high = numbers.get(f"{name}_low"), numbers.get(f"{name}_high")
    return f"{numbers[name]:.2f}" + ("" if low is None or high is None else f" ({low:.2f} - {high:.2f})")


def threads_text(count: int | None = None) -> str:
    """A number of threads in words; that of torch when omitted.

    Example:
        >>> threads_text(1), threads_text(2)
        ('1 thread', '2 threads')
    """
    count = torch.get_num_threads() if count is None else count
    return f"{count} thread{'s' if count > 1 else ''}"


def backward_step(
    module: nn.Module, *arguments: Any, loss: Callable[..., Tensor] | None = None
) -> Callable[[], Tensor]:
    """Forward and backward of a loss of the arguments, which the step returns; the module itself when it is omitted."""

    def step() -> Tensor:
        module.zero_grad()
        value: Tensor = (loss or module)(*arguments)
        value.backward()
        return value.detach()

    return step


def training_step(
    module: nn.Module, *arguments: Any, loss: Callable[..., Tensor] | None = None, learning_rate: float = 1e-3
) -> Callable[[], Tensor]:
    """As :func:`backward_step`, and Adam; a rate of 0 keeps the module untrained."""
    optimiser = torch.optim.Adam(module.parameters(), lr=learning_rate)
    backward = backward_step(module, *arguments, loss=loss)

    def step() -> Tensor:
        value = backward()
        optimiser.step()
        return value

    return step


def interleave(
    contestants: Mapping[Name, Callable[[], object]], *, rounds: int = 50, warm_up: int = 5
) -> dict[Name, Timing]:
    """Time the contestants in turn, rounds after those of the warm-up; the first is the reference of the ratios.

    Where torch's default device is a GPU, times are those between events on it.
    """
    clock = _event_time if torch.get_default_device().type == "cuda" else _wall_time
    times: dict[Name, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, call in contestants.items():
            elapsed = clock(call)
            if turn >= warm_up:
                times[name].append(elapsed)
    samples = {name: torch.tensor(values, dtype=torch.float64, device="cpu") for name, values in times.items()}
    reference = next(iter(samples.values()))
    return {name: Timing(*_spread(values), *_spread(values / reference)) for name, values in samples.items()}


def _spread(values: Tensor) -> list[float]:
    """Median, 10 % and 90 % quantile; of an even number of rounds torch's own median would be the lower middle one."""
    levels = torch.tensor([0.5, 0.1, 0.9], dtype=values.dtype, device="cpu")
    return values.quantile(levels).tolist()


def _wall_time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def _event_time(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()  # or the next call would start behind this one
    elapsed: float = begin.elapsed_time(end)
    return elapsed
