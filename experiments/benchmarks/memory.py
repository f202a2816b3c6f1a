"""Peak memory of a computation, measured in a process of its own, and times beside it."""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from experiments.benchmarks.timing import Timing, interleave
from experiments.files import UserError

__all__ = ["measure", "peak_memory"]

Name = TypeVar("Name", bound=str)


def measure(
    make_step: Callable[..., Callable[[], object]],
    contestants: Sequence[Name],
    size: object,
    *,
    rounds: int,
    warm_up: int = 1,
    processes: int = 1,
) -> tuple[dict[Name, Timing], dict[Name, float]]:
    """Times of the steps that are made of a contestant and a size, in turn, and the peak memory of each in MB.

    The peak is the median of several processes: what the allocator has not given back yet differs between them.
    """  # fmt: skip
    peaks = {name: median(peak_memory(make_step, name, size) for _ in range(processes)) for name in contestants}
    steps = {name: make_step(name, size) for name in contestants}
    return interleave(steps, rounds=rounds, warm_up=warm_up), peaks


def peak_memory(prepare: Callable[..., Callable[[], object]], *arguments: Any, calls: int = 2) -> float:
    """Memory that calls need at their peak beyond what was there before the first one, in MB (10^6 bytes).

    ``prepare``, a function of a module, makes the call of the arguments; the first call leaves behind what later ones
    find, such as gradients. Each measurement has a new process. It is forked from one that has only imported what it
    needs: a process started the usual way inherits this one's peak (Linux keeps ``ru_maxrss`` across exec).

    Raises:
        UserError: The process was killed or ran out of memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])  # counts before the first process only
    try:
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(_measure, prepare, arguments, calls, torch.get_num_threads()).result()
    except (BrokenProcessPool, MemoryError, RuntimeError) as error:
        raise UserError(
            f"no peak memory of {prepare.__name__}{arguments}: {type(error).__name__}: {error}. If the machine ran out "
            f"of memory, choose a smaller size"
        ) from error


def _measure(
    prepare: Callable[..., Callable[[], object]], arguments: tuple[Any, ...], calls: int, threads: int
) -> float:
    torch.set_num_threads(threads)
    call = prepare(*arguments)
    with suppress(OSError):  # Linux lowers the peak to the present size: the preparation's own would hide the calls'
        Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    for _ in range(calls):
        call()
    return (_peak() - before) / 1e6


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
