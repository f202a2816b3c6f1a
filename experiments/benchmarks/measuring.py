"""Measuring and what comes of it: interleaved times, peak memory, metrics, tables, pictures and published sections.

Machines drift, so compared things take turns and only their ratios are quoted.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from tqdm import tqdm

from experiments.benchmarks.config import MeasuringOptions
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, hold
from experiments.harness.results import write_environment, write_metrics
from experiments.report.columns import Row
from experiments.report.figures import save
from experiments.report.report import Part, Report
from experiments.report.results import source_of, write_results
from experiments.report.tables import as_table

Item = TypeVar("Item")
Name = TypeVar("Name", bound=str)
Config = TypeVar("Config", bound=MeasuringOptions)

# Time


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


def training_step(
    module: nn.Module,
    *arguments: Any,
    loss: Callable[..., Tensor] | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] | None = torch.optim.Adam,
    learning_rate: float = 1e-3,
) -> Callable[[], Tensor]:
    """Forward, backward and an optimizer's step of a loss of the arguments, which is returned.

    The loss is the module itself when it is omitted; without an optimizer, or with a rate of 0, nothing is trained.
    """
    descent = None if optimizer is None else optimizer(module.parameters(), lr=learning_rate)

    def step() -> Tensor:
        module.zero_grad()
        value: Tensor = (loss or module)(*arguments)
        value.backward()
        if descent is not None:
            descent.step()
        return value.detach()

    return step


def interleave(
    contestants: Mapping[Name, Callable[[], object]], *, rounds: int, warm_up: int = 5
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
    return values.quantile(torch.tensor([0.5, 0.1, 0.9], dtype=values.dtype, device="cpu")).tolist()


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


# Memory


def peak_memory(prepare: Callable[..., Callable[[], object]], *arguments: Any) -> float:
    """Memory that calls need at their peak beyond what was there before the first one, in MB (10^6 bytes).

    ``prepare``, a function of a module, makes the call of the arguments, in a new process; the first call leaves behind
    what the second finds, such as gradients. The process is forked from one that has only imported what it needs: one
    that is started the usual way inherits this one's peak (Linux keeps ``ru_maxrss`` across exec).

    Raises:
        UserError: The process was killed or ran out of memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([prepare.__module__])  # counts before the first process only
    try:
        with ProcessPoolExecutor(1, context) as pool:
            return pool.submit(_peak_here, prepare, arguments, torch.get_num_threads()).result()
    except (BrokenProcessPool, MemoryError, RuntimeError) as error:
        raise UserError(f"no peak memory of {prepare.__name__}{arguments}: {error}; choose a smaller size") from error


def _peak_here(prepare: Callable[..., Callable[[], object]], arguments: tuple[Any, ...], threads: int) -> float:
    torch.set_num_threads(threads)
    call = prepare(*arguments)
    with suppress(OSError):  # Linux lowers the peak to the present size: the preparation's own would hide the calls'
        Path("/proc/self/clear_refs").write_text("5")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        call()
    unit = 1 if sys.platform == "darwin" else 1024
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 1e6


# Metrics of contestants, by names such as 512_positions/dense/ms

QUANTITIES = ("ms", "ratio", "ratio_low", "ratio_high", "peak_mb")


def sized_metrics(name: str, times: Mapping[Name, Timing], peaks: Mapping[Name, float]) -> dict[str, float]:
    """The quantities of all contestants at the size of a name."""
    metrics = dict[str, float]()
    for one, timing in times.items():
        values = timing.median, timing.ratio, timing.ratio_low, timing.ratio_high, peaks[one]
        metrics |= {f"{name}/{one}/{quantity}": value for quantity, value in zip(QUANTITIES, values, strict=True)}
    return metrics


def measure(
    name: str,
    make_step: Callable[..., Callable[[], object]],
    contestants: Sequence[str],
    size: object,
    *,
    rounds: int,
    warm_up: int = 1,
    processes: int = 1,
) -> dict[str, float]:
    """Metrics of the steps that are made of a contestant and a size: times in turn, and peak memory.

    The peak is the median of several processes: what the allocator has not given back yet differs between them.
    """
    peaks = {one: median(peak_memory(make_step, one, size) for _ in range(processes)) for one in contestants}
    steps = {one: make_step(one, size) for one in contestants}
    return sized_metrics(name, interleave(steps, rounds=rounds, warm_up=warm_up), peaks)


# What a benchmark leaves behind


def progress(items: Iterable[Item], unit: str) -> Iterable[Item]:
    """The items, with a progress bar where there is a terminal."""
    return tqdm(items, unit=unit, disable=not sys.stderr.isatty(), leave=False)


def threads_text() -> str:
    """Torch's number of threads in words."""
    count = torch.get_num_threads()
    return f"{count} thread{'s' if count > 1 else ''}"


def with_spread(numbers: Mapping[str, float], name: str) -> str:
    """A number, with its quantiles ``NAME_low`` and ``NAME_high`` where there are any.

    Example:
        >>> with_spread({"ratio": 0.93, "ratio_low": 0.83, "ratio_high": 1.01}, "ratio")
        '0.93 (0.83 - 1.01)'
    """
    low, high = numbers.get(f"{name}_low"), numbers.get(f"{name}_high")
    return f"{numbers[name]:.2f}" + ("" if low is None or high is None else f" ({low:.2f} - {high:.2f})")


def rows_by_size(
    metrics: Mapping[str, float], head: str, sizes: Mapping[str, str], contestants: Sequence[str], *, digits: int = 0
) -> list[Row]:
    """A row for each size, as metrics name it, with what the first column shows; "-" where a contestant was left out.

    The first contestant is the reference, whose ratio is not shown.
    """
    rows = list[Row]()
    for size, shown in sizes.items():
        row: Row = {head: shown}
        for name in contestants:
            ms, ratio, memory = (f"{size}/{name}/{quantity}" for quantity in ("ms", "ratio", "peak_mb"))
            row[f"{name} ms"] = f"{metrics[ms]:.{digits}f}" if ms in metrics else "-"
            if name != contestants[0]:
                row[f"{name} ratio"] = with_spread(metrics, ratio) if ratio in metrics else "-"
            row[f"{name} MB"] = f"{metrics[memory]:.0f}" if memory in metrics else "-"
        rows.append(row)
    return rows


def rows_by_contestant(metrics: Mapping[str, float], sizes: Mapping[str, Row], contestants: Sequence[str]) -> list[Row]:
    """A row for each contestant that was measured, at each size, as metrics name it, with its first columns."""
    rows = list[Row]()
    for size, first in sizes.items():
        for name in [name for name in contestants if f"{size}/{name}/ms" in metrics]:
            found = {quantity: metrics[f"{size}/{name}/{quantity}"] for quantity in QUANTITIES}
            row = {"attention": name, "ratio": f"{found['ratio']:.2f}"}
            row["10-90 % of the ratio"] = f"{found['ratio_low']:.2f} - {found['ratio_high']:.2f}"
            rows.append({**first, **row, "ms": f"{found['ms']:.0f}", "MB": f"{found['peak_mb']:.0f}"})
    return rows


def growth_figure(
    metrics: Mapping[str, float],
    unit: str,
    sizes: Sequence[int],
    styles: Mapping[Name, tuple[str, str]],
    *,
    slopes: Mapping[int, str],
    start: float,
) -> Figure:
    """Time and peak memory against the size on logarithmic axes; colour and marker are the style of a contestant.

    Dashed lines of some slopes go from ``start`` to the largest size and meet there, below the curves.
    """
    figure, ends = Figure(figsize=(9, 3.9), layout="constrained"), (start, max(sizes))
    for axis, quantity in zip(figure.subplots(1, 2), ("ms", "peak_mb"), strict=True):
        lowest = []
        for name, (colour, marker) in styles.items():
            values = {size: metrics.get(f"{size}_{unit}/{name}/{quantity}", 0.0) for size in sorted(sizes)}
            # memory below what can be measured has no place on a logarithmic axis
            points = [(size, value) for size, value in values.items() if value > 0]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, label=name)
            lowest += [value for size, value in points if size == ends[1]]
        for slope, dashes in slopes.items():
            line = [0.6 * min(lowest, default=1.0) * (size / ends[1]) ** slope for size in ends]
            axis.plot(ends, line, color="0.3", linestyle=dashes, linewidth=1, label=f"slope {slope}")
        axis.set(xscale="log", yscale="log", xlabel=unit)
        axis.grid(which="major", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set(ylabel="ms", title="Forward and backward")
    figure.axes[1].set(ylabel="MB", title="Peak memory")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a benchmark has found, and how it is told."""

    metrics: dict[str, float]
    rows: Sequence[Row]
    name: str  # of the published file
    title: str
    text: str  # ahead of the table
    reference: str  # to whose time the ratios are
    clock: str = ""  # what is timed beside forward and backward, or by what
    memory: str = "beyond that before the first one"
    definitions: Mapping[str, str] = field(default_factory=dict)  # by the last part of the names of other metrics
    always: Sequence[str] = ("rounds",)  # options that the published command names in any case
    more: str = ""  # the end of that command
    device: str = "cpu"
    figure: Figure | None = None
    caption: str = ""
    notes: str = ""  # below everything

    def defined(self, metric: str) -> str:
        """What a metric means."""
        definitions = {
            "ms": f"median time of forward and backward{self.clock} in milliseconds",
            "ratio": f"that time divided by {self.reference} in the same round, median over rounds",
            "ratio_low": "10 % quantile of that ratio over rounds",
            "ratio_high": "90 % quantile of that ratio over rounds",
            "peak_mb": f"memory at the peak of forward and backward {self.memory}, in MB (10^6 bytes)",
        }
        return {**definitions, **self.definitions}[metric.rpartition("/")[2]]


def command(measured: Callable[[Config], Outcome]) -> Callable[[Config], dict[str, float]]:
    """Make a measuring function a script, which returns the metrics.

    It takes the folder and torch's threads as they are wanted, writes metrics.json, environment.json and the picture,
    prints the table, and publishes both if asked.
    """
    script = measured.__module__

    @exclusive
    def run(config: Config) -> dict[str, float]:
        hold(config.out)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        found, results = measured(config), config.results
        write_environment(config.out, torch.device(found.device), script=script)
        write_metrics(config.out, found.metrics, {name: found.defined(name) for name in found.metrics})
        print(as_table(found.rows), config.out / "metrics.json", sep="\n")
        parts, picture = [Part(text=found.text, rows=found.rows)], f"{script.rpartition('.')[2]}.png"
        if found.figure is not None:
            print(save(found.figure, config.out / picture))
        if results is not None:
            if found.figure is not None:
                shown = save(found.figure, results / "pictures" / picture)
                parts.append(Part(picture=shown, caption=found.caption))
            parts += [Part(text=found.notes)] * bool(found.notes)
            line = command_line(script, config, always=found.always) + found.more
            source = source_of([config.out], line, threads_text() if found.device == "cpu" else "")
            print(write_results(results, Report(found.title, found.name, parts), source))
        return found.metrics

    return run
