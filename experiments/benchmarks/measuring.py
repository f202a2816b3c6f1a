"""Interleaved times and peak memory. Machines drift, so contestants take turns and only their ratios are quoted."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from experiments.report.statistics import Estimate, Row
from pyro_attention.objectives.validation import KLWarning

Step = Callable[[], object]
LONG = 20_000.0  # milliseconds after which no round begins, except for the first three


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Contestants that take turns, at some sizes.

    Attributes:
        title: Heading of the published table.
        text: Description of the steps that are timed.
        make_step: Function of a contestant and a size that makes the step, or None where it does not take part.
        contestants: Names of the contestants; the first one is the reference.
        sizes: Sizes by their names in the table.
        rounds: Number of rounds that count; at least three, and no more begin after 20 seconds.
        memory: Whether to measure the peak memory of each step too.
        device: Device to compute on.
    """

    title: str
    text: str
    make_step: Callable[[str, Any], Step | None]
    contestants: Sequence[str]
    sizes: Mapping[str, Any]
    rounds: int = 5
    memory: bool = True
    device: Literal["cpu", "cuda"] = "cpu"

    def measure(self, rounds: int) -> list[Row]:
        """Return a row for each contestant at each size: medians, and the 10 % and 90 % quantiles of the ratio."""
        with data_of_no_meaning():
            return self._measure(rounds)

    def _measure(self, rounds: int) -> list[Row]:
        rows = list[Row]()
        for name, size in tqdm(self.sizes.items(), unit="size", disable=not sys.stderr.isatty(), leave=False):
            # no default device on the CPU: it would take time at every call of torch
            with nullcontext() if self.device == "cpu" else torch.device(self.device):
                steps = {
                    contestant: step
                    for contestant in self.contestants
                    if (step := self.make_step(contestant, size)) is not None
                }
                peaks = {
                    contestant: self._peak(contestant, size, step) for contestant, step in steps.items() if self.memory
                }
                times = interleave(steps, rounds=rounds, warm_up=max(1, rounds // 10)) if steps else {}
            for contestant, milliseconds in times.items():
                low, ratio, high = _quantiles(milliseconds / times[self.contestants[0]])
                cells = {"ratio": Estimate(ratio), "10-90 % of the ratio": f"{low:.2f} - {high:.2f}"}
                cells |= {"ms": Estimate(_quantiles(milliseconds)[1], digits=1)}
                rows.append(
                    {"size": name, "contestant": contestant}
                    | cells
                    | ({"MB": peaks[contestant]} if self.memory else {})
                )
        return rows

    def _peak(self, contestant: str, size: Any, step: Step) -> Estimate:
        if self.device == "cpu":
            return Estimate(peak_memory(self.make_step, contestant, size), digits=0)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            step()
        return Estimate((torch.cuda.max_memory_allocated() - before) / 1e6, digits=0)


@contextmanager
def data_of_no_meaning() -> Iterator[None]:
    """Silence the advice on the KL weight: the data of a benchmark are random numbers, and few."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KLWarning)
        yield


def _quantiles(values: Tensor) -> list[float]:
    # of an even number of rounds torch's own median would be the lower middle one
    return values.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=values.dtype, device="cpu")).tolist()


def training_step(
    module: nn.Module,
    *arguments: Any,
    loss: Callable[..., Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = torch.optim.Adam,
    learning_rate: float = 1e-3,
) -> Callable[[], Tensor]:
    """Return a function that makes a training step (forward, backward, optimizer) and returns the loss.

    Without ``loss`` the module computes the loss of the arguments. Without an optimizer, or with a rate of 0, nothing
    is trained.
    """
    descent = None if optimizer is None else optimizer(module.parameters(), lr=learning_rate)

    def step() -> Tensor:
        (descent or module).zero_grad()
        value: Tensor = (loss or module)(*arguments)
        value.backward()
        if descent is not None:
            descent.step()
        return value.detach()

    return step


def interleave(contestants: Mapping[str, Step], *, rounds: int, warm_up: int) -> dict[str, Tensor]:
    """Time the contestants in turn and return the milliseconds ``[rounds]`` of each, without the warm-up.

    Where torch's default device is a GPU, times are those between events on it.
    """
    clock = _event_time if torch.get_default_device().type == "cuda" else _cpu_time
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(warm_up + rounds):
        for name, call in contestants.items():
            elapsed = clock(call)
            if turn >= warm_up:
                times[name].append(elapsed)
        if turn >= warm_up + 2 and sum(map(sum, times.values())) > LONG:
            break
    return {name: torch.tensor(values, dtype=torch.float64, device="cpu") for name, values in times.items()}


def _cpu_time(call: Step) -> float:
    start = time.process_time()  # time of all threads, which other work on the machine disturbs less than a clock
    call()
    return 1e3 * (time.process_time() - start)


def _event_time(call: Step) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()  # else the next call would wait for this one
    elapsed: float = begin.elapsed_time(end)
    return elapsed


def peak_memory(prepare: Callable[..., Any], *arguments: Any) -> float:
    """Return the peak memory of two calls minus the memory before them, in MB (10^6 bytes), on Linux.

    ``prepare``, a function of a module, makes the call from the arguments in a new process. The first call allocates
    what the second needs too, such as gradients. The process is forked from one that has only imported modules, because
    a process that is started the usual way inherits the peak of this one (Linux keeps ``ru_maxrss`` across exec).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])  # counts before the first process only
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_peak_here, prepare, arguments, torch.get_num_threads()).result()


def _peak_here(prepare: Callable[..., Any], arguments: tuple[Any, ...], threads: int) -> float:
    torch.set_num_threads(threads)
    call = prepare(*arguments)
    Path("/proc/self/clear_refs").write_text("5")  # lowers the peak, which may be that of the preparation
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with data_of_no_meaning():
        for _ in range(2):
            call()
    return 1024e-6 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
