"""Pictures of studies, and of the calibration of probabilities."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.files import write_atomic
from experiments.report.statistics import summarize
from pyro_attention.plots import reliability

_PAGE = 11.0  # width of a page of the site in inches
_LEGEND = 2.6  # width of a legend beside the panels in inches
_COLORS = ("0.35", "#1b6ca8", "#d1495b", "#2a9d8f", "#e9a23b", "#7b5ea7")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=150, bbox_inches="tight"))
    return path


def panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """Return a figure of this size in inches, and its panels ``[rows, columns]`` without frames at the top and right.

    The options are those of :meth:`matplotlib.figure.Figure.subplots`, such as ``sharey``.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def printable(text: str) -> str:
    """Return text that matplotlib can draw: cut at 100 letters, without control characters and mathematics."""
    text = text if len(text) <= 100 else text[:99] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")


def reliability_panels(panels_by_name: Mapping[str, tuple[Tensor, Tensor]], *, confidence: str, right: str) -> Figure:
    """Draw the share of right items against their probability in a panel for each name.

    Calibrated probabilities lie on the diagonal.

    Args:
        panels_by_name: Probabilities ``[items]`` and whether items are right ``[items]``, by name.
        confidence: Label of the axis of probabilities.
        right: Label of the axis of shares.
    """
    figure, axes = _grid(len(panels_by_name), size=(3.0, 3.9), sharey=True)
    for axis, (name, items) in zip(axes, panels_by_name.items(), strict=False):
        reliability(*items, legend=False, axes=axis)  # the figure has one legend for all panels
        axis.set(xlabel="", ylabel="")
        axis.set_title(f"{textwrap.fill(name, 22)}\n({len(items[0])} items)", fontsize=10)
    handles, _ = axes[0].get_legend_handles_labels()
    labels = ["as it should be", "share that is right", "share of the items"]
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(panels_by_name), 3), frameon=False)
    figure.supxlabel(confidence)
    figure.supylabel(right)
    return figure


Levels = Mapping[str, Sequence[Sequence[float]]]  # by row and level, a number for each seed


def _grid(count: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with this number of panels, and as many beside each other as fit on a page."""
    columns = 2 if count == 4 else min(count, int(_PAGE // size[0]))
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, size=(size[0] * columns, size[1] * rows), **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)


def level_curves(
    shown: Mapping[str, Levels], levels: Sequence[str], *, axis: str, title: str = "",
    aims: Mapping[str, float] | None = None,
) -> Figure:  # fmt: skip
    """Draw the mean over seeds with its standard error against the level, in a panel for each metric.

    A metric with an aim has a dashed line there. The legend takes the place of a panel that is left over.

    Args:
        shown: Numbers by metric, row and level.
        levels: Names of the levels.
        axis: What they are.
        title: Title of the picture.
        aims: What some of the metrics should be.
    """
    figure, axes = _grid(len(shown), size=(3.4, 3.4))
    left_over = axes[len(shown) :]
    if not left_over:
        figure.set_figwidth(figure.get_figwidth() + _LEGEND)
    for axes_of_column, (metric, of_rows) in zip(axes, shown.items(), strict=False):
        for number, (row, values) in enumerate(of_rows.items()):
            estimates = [summarize(list(at_level) or [math.nan]) for at_level in values]
            axes_of_column.errorbar(
                np.arange(len(estimates)) + 0.06 * (number - (len(of_rows) - 1) / 2),
                [estimate.mean for estimate in estimates],
                yerr=[0 if math.isnan(estimate.standard_error) else estimate.standard_error for estimate in estimates],
                marker="o", markersize=4, capsize=2, linewidth=1.3, color=_COLORS[number % len(_COLORS)], label=row,
            )  # fmt: skip
        aim = (aims or {}).get(metric)
        if aim is not None:
            axes_of_column.axhline(aim, color="0.35", linestyle="--", linewidth=1)
        axes_of_column.set_title(metric if aim is None else f"{metric} (dashed: {aim:g})", fontsize=10)
        axes_of_column.set_xticks(np.arange(len(levels)), levels)
        axes_of_column.grid(axis="y", color="0.92")
    seeds = max((len(values) for of_rows in shown.values() for row in of_rows.values() for values in row), default=0)
    figure.supxlabel(axis, fontsize=10)
    figure.supylabel(f"mean and standard error over {seeds} seeds" if seeds > 1 else "one seed", fontsize=10)
    figure.suptitle(textwrap.fill(title, int(9 * figure.get_figwidth())), fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    if left_over:
        left_over[0].set_visible(True)
        left_over[0].axis("off")
        left_over[0].legend(handles, labels, loc="center", frameon=False)
    else:
        figure.legend(handles, labels, loc="outside right center", frameon=False)
    return figure


def learning_curves(curves: Mapping[str, Mapping[str, Sequence[np.ndarray]]], *, name: str, title: str = "") -> Figure:
    """Draw the mean over seeds of a metric against the epoch, a line for each row, in a panel for each data set.

    A training that ended before the longest one keeps its last value.

    Args:
        curves: Value after every epoch, by data set, row and seed.
        name: What the metric is.
        title: Title of the picture.
    """
    figure, axes = _grid(len(curves), size=(5.2, 3.6))
    figure.set_figwidth(figure.get_figwidth() + _LEGEND)
    seeds = 1
    for axis, (level, of_rows) in zip(axes, curves.items(), strict=False):
        length = max(len(run) for runs in of_rows.values() for run in runs)
        for number, (row, runs) in enumerate(of_rows.items()):
            seeds = max(seeds, len(runs))
            mean = np.mean([np.pad(run, (0, length - len(run)), mode="edge") for run in runs], axis=0)
            axis.plot(
                np.arange(1, length + 1), mean, label=row, linewidth=1.4, color=_COLORS[number % len(_COLORS)],
                linestyle="-" if number < len(_COLORS) else "--", marker="." if length <= 30 else "",
            )  # fmt: skip
        axis.set_title(level, fontsize=10)
        axis.grid(axis="y", color="0.92")
    figure.supxlabel("epoch", fontsize=10)
    figure.supylabel(f"{name},\nmean over {seeds} seeds" if seeds > 1 else f"{name},\none seed", fontsize=10)
    figure.suptitle(textwrap.fill(title, int(9 * figure.get_figwidth())), fontsize=11)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
