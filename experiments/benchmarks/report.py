"""What a benchmark that goes through several sizes leaves behind: metrics, a table, a picture and a section."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.figure import Figure
from tqdm import tqdm

from experiments.benchmarks.timing import Timing, threads_text, with_spread
from experiments.harness.folder import open_results
from experiments.harness.results import write_environment, write_metrics
from experiments.report.columns import Row
from experiments.report.figures import save
from experiments.report.report import Part, Report
from experiments.report.results import source_of, write_results
from experiments.report.tables import as_table

__all__ = ["growth_figure", "open_folder", "progress", "publish", "quantities", "rows_by_size", "sized_metrics"]

Item = TypeVar("Item")
Name = TypeVar("Name", bound=str)


def quantities(reference: str, *, memory: str = "beyond that before the first one", clock: str = "") -> dict[str, str]:
    """Definitions of a contestant's numbers: the ratios are to the time of ``reference``."""
    return {
        "ms": f"median time of forward and backward{clock} in milliseconds",
        "ratio": f"that time divided by {reference} in the same round, median over rounds",
        "ratio_low": "10 % quantile of that ratio over rounds",
        "ratio_high": "90 % quantile of that ratio over rounds",
        "peak_mb": f"memory at the peak of forward and backward {memory}, in MB (10^6 bytes)",
    }


def open_folder(out: Path, script: str, threads: int | None = None) -> None:
    """Take the folder for the results of a script, and torch's threads as they are wanted."""
    open_results(out, script)
    if threads is not None:
        torch.set_num_threads(threads)


def progress(items: Iterable[Item], unit: str) -> Iterable[Item]:
    """The items, with a progress bar where there is a terminal."""
    return tqdm(items, unit=unit, disable=not sys.stderr.isatty(), leave=False)


def sized_metrics(size: str, times: Mapping[Name, Timing], peaks: Mapping[Name, float]) -> dict[str, float]:
    """The numbers of all contestants at one size, by names such as ``512_positions/dense/ms``."""
    return {
        f"{size}/{name}/{quantity}": value
        for name, timing in times.items()
        for quantity, value in timing.quantities(peak_mb=peaks[name]).items()
    }


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
    figure = Figure(figsize=(9, 3.9), layout="constrained")
    for axis, quantity in zip(figure.subplots(1, 2), ("ms", "peak_mb"), strict=True):
        lowest = []
        for name, (colour, marker) in styles.items():
            values = {size: metrics.get(f"{size}_{unit}/{name}/{quantity}", 0.0) for size in sorted(sizes)}
            # memory below what can be measured has no place on a logarithmic axis
            points = [(size, value) for size, value in values.items() if value > 0]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, label=name)
            lowest += [value for size, value in points if size == max(sizes)]
        ends = start, max(sizes)
        for slope, dashes in slopes.items():
            line = [0.6 * min(lowest, default=1.0) * (size / ends[1]) ** slope for size in ends]
            axis.plot(ends, line, color="0.3", linestyle=dashes, linewidth=1, label=f"slope {slope}")
        axis.set(xscale="log", yscale="log")
        axis.grid(which="major", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set(ylabel="ms", title="Forward and backward")
    figure.axes[1].set(ylabel="MB", title="Peak memory")
    return figure


def publish(
    script: str,
    metrics: Mapping[str, float],
    definitions: Mapping[str, str],
    rows: Sequence[Row],
    *,
    out: Path,
    results: Path | None,
    name: str,
    title: str,
    command: str,
    text: str,
    device: str = "cpu",
    figure: Figure | None = None,
    caption: str = "",
    notes: str = "",
) -> None:
    """Write metrics.json, environment.json and the picture into a folder, print the table, and publish both if asked.

    The definitions are by the last part of the names of the metrics. Published are the command that repeats the run,
    the text, the table, the picture with its caption, and notes.
    """
    write_environment(out, torch.device(device), script=script)
    write_metrics(out, metrics, {name: definitions[name.rpartition("/")[2]] for name in metrics})
    print(as_table(rows), out / "metrics.json", sep="\n")
    picture = f"{script.rpartition('.')[2]}.png"
    for folder in (out, *([] if results is None else [results / "pictures"])):
        if figure is not None:
            print(save(figure, folder / picture))
    if results is not None:
        parts = [Part(text=text, rows=rows)]
        if figure is not None:
            parts.append(Part(picture=results / "pictures" / picture, caption=caption))
        parts += [Part(text=notes)] * bool(notes)
        source = source_of([out], command, threads_text() if device == "cpu" else "")
        print(write_results(results, Report(title, name, parts), source))
