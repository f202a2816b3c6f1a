"""Steps on a GPU side by side: time by events over several steps, memory, waits, and equal gradients."""

from __future__ import annotations

import gc
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks.measuring import Step
from experiments.benchmarks.stages import Result
from experiments.report.statistics import Estimate, Row

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Contestant:
    """A step, and the tensors whose gradients have to be equal in two steps from the same seed."""

    step: Step
    leaves: Sequence[Tensor] = ()


def race(
    makers: Mapping[str, Callable[[], Contestant | None]], *, size: str, seconds: float, rounds: int = 7
) -> Result:
    """Measure contestants in turn at one size, and return a row for each; ratios are to the first that worked.

    Several steps follow each other without a wait in between, as in training. So the time of a busy GPU does not
    include that of Python, which is in the column "CPU ms". A contestant that fails has a row with the word "failed".
    Without a GPU there is "-" in the columns of memory and of the time of Python.

    Args:
        makers: Functions that make the contestants by name; None is a contestant that does not take part.
        size: First column of the rows.
        seconds: Seconds after which no round begins, except for the first three.
        rounds: Largest number of rounds.
    """
    ready, cells, problems = dict[str, Contestant](), dict[str, Row](), list[str]()
    for name, make in makers.items():
        try:
            begun = time.perf_counter()
            if (contestant := make()) is not None:
                cells[name] = _single(contestant) | {"first step s": Estimate(time.perf_counter() - begun, digits=1)}
                ready[name] = contestant
        except Exception:
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()  # raises where the GPU cannot be used any more
            problems.append(f"{size}, {name}:\n{traceback.format_exc()}")
    times = _times_in_turn(ready, seconds=seconds, rounds=rounds)
    rows = list[Row]()
    for name in makers:
        row: Row = {"size": size, "contestant": name}
        if name in ready:
            row |= _time_cells(times[name], times[next(iter(ready))]) | cells[name]
            rows.append({column: row[column] for column in _COLUMNS})
        elif any(text.startswith(f"{size}, {name}:") for text in problems):
            rows.append(dict.fromkeys(_COLUMNS, "failed") | row)
    return Result(rows, problems)


_COLUMNS = ("size", "contestant", "ratio", "ms", "MB", "equal gradients", "spread", "CPU ms", "first step s")
Times = list[tuple[float, float]]  # milliseconds by events and milliseconds of the CPU, for every round


def _times_in_turn(contestants: Mapping[str, Contestant], *, seconds: float, rounds: int) -> dict[str, Times]:
    """Time the contestants in turn; after ``seconds`` no round begins, except for the first three."""
    counts = {name: _steps_in_a_row(contestant.step) for name, contestant in contestants.items()}
    times: dict[str, Times] = {name: [] for name in contestants}
    begun = time.perf_counter()
    for turn in range(rounds):
        if turn >= 3 and time.perf_counter() - begun > seconds:
            break
        for name, contestant in contestants.items():
            times[name].append(clock(contestant.step, counts[name]))
    return times


def _time_cells(times: Times, reference: Times) -> Row:
    """Return the cells of the times, with the ratio to the times of the reference in the same rounds."""
    ratios = [a / b for (a, _), (b, _) in zip(times, reference, strict=True)]
    return {
        "ratio": Estimate(_median(ratios), digits=3),
        "spread": f"{min(ratios):.2f} - {max(ratios):.2f}",
        "ms": Estimate(_median([a for a, _ in times]), digits=3),
        "CPU ms": Estimate(_median([b for _, b in times]), digits=3) if torch.cuda.is_initialized() else "-",
    }


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64, device="cpu").quantile(0.5))


def _single(contestant: Contestant) -> Row:
    """Return the peak memory of a step, and whether two steps from one seed leave the same gradients."""
    step, on_gpu = contestant.step, torch.cuda.is_initialized()
    gradients = []
    for _ in range(2):
        torch.manual_seed(1)
        for leaf in contestant.leaves:
            leaf.grad = None
        step()
        gradients.append([leaf.grad.clone() for leaf in contestant.leaves if leaf.grad is not None])
    equal = "-"
    if contestant.leaves:
        same = len(gradients[0]) == len(contestant.leaves)
        equal = "yes" if same and all(map(torch.equal, *gradients)) else "no"
    del gradients
    if not on_gpu:
        return {"MB": "-", "equal gradients": equal}
    for leaf in contestant.leaves:
        leaf.grad = None
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return {"MB": Estimate((torch.cuda.max_memory_allocated() - before) / 1e6, digits=0), "equal gradients": equal}


def _steps_in_a_row(step: Step) -> int:
    """Return a number of steps, at most 20, that together take at least 40 ms."""
    milliseconds, _ = clock(step, 2)
    return min(20, max(2, round(40 / max(milliseconds, 1e-3)))) if torch.cuda.is_initialized() else 1


def clock(step: Step, count: int) -> tuple[float, float]:
    """Return milliseconds per step of a row of steps: by events on the GPU, and on the CPU until the last was sent."""
    if not torch.cuda.is_initialized():
        begun = time.perf_counter()
        for _ in range(count):
            step()
        elapsed = 1e3 * (time.perf_counter() - begun) / count
        return elapsed, elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun = time.perf_counter()
    begin.record()
    for _ in range(count):
        step()
    end.record()
    sent = 1e3 * (time.perf_counter() - begun) / count
    end.synchronize()
    return begin.elapsed_time(end) / count, sent


# Waits


def waits(step: Step) -> tuple[int, int, str]:
    """Count the waits of a step for its GPU, by the profiler and by torch's warnings, and list their lines.

    The profiler counts cudaStreamSynchronize, with which every copy to the CPU or from pageable memory ends.
    """
    step()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        step()
    count = sum(event.count for event in record.key_averages() if event.key.endswith("StreamSynchronize"))
    lines = Counter[str]()

    def note(message: Any, *_: Any, **__: Any) -> None:
        if "called a synchronizing" in str(message):  # the mode itself warns once a process, of being a prototype
            frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(str(ROOT))]
            frames = [frame for frame in frames if "benchmarks" not in frame.filename] or frames
            innermost = frames[-1] if frames else None  # the backward pass has threads of its own
            location = (
                f"{Path(innermost.filename).relative_to(ROOT)}:{innermost.lineno} {innermost.line}"
                if innermost
                else "backward"
            )
            lines[location] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    listed = "; ".join(f"{times} x {line}" for line, times in lines.most_common())
    return count, sum(lines.values()), listed
