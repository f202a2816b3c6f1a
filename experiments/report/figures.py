"""Pictures of studies, and of how honest probabilities are."""

from __future__ import annotations

import math
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

_PAGE = 11.0  # inches that are as wide as a page of the site
_COLORS = ("0.35", "#1b6ca8", "#d1495b", "#2a9d8f", "#e9a23b", "#7b5ea7")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, whole or not at all."""
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=150, bbox_inches="tight"))
    return path


def panels(rows: int, columns: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of a size in inches, with empty panels ``[rows, columns]`` without frames on top and on the right.

    The options are those of :meth:`matplotlib.figure.Figure.subplots`, such as ``sharey``.
    """
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def printable(text: str) -> str:
    """Text without mathematics, and without the endless words and control characters of an untrained network."""
    text = text if len(text) <= 100 else text[:99] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")


def reliability_panels(found: Mapping[str, tuple[Tensor, Tensor]], *, confidence: str, right: str) -> Figure:
    """Share of what is right against its probability, one panel a name; on the diagonal probabilities are honest.

    Args:
        found: Name to (probabilities ``[items]``, whether each item is right ``[items]``).
        confidence: What the probabilities are, for the axis.
        right: What the share is.
    """
    figure, axes = _grid(len(found), size=(2.75, 3.1), sharey=True)
    for axis, (name, items) in zip(axes, found.items(), strict=False):
        reliability(*items, axes=axis)
        axis.set(xlabel="", ylabel="")
        axis.set_title(name, fontsize=10)
    axes[0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel(confidence)
    figure.supylabel(right)
    return figure


Levels = Mapping[str, Sequence[Sequence[float]]]  # by row and level, one number a seed


def _grid(count: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with that many panels of a size, so many beside each other that they can be read on a page."""
    columns = 2 if count == 4 else min(count, int(_PAGE // size[0]))
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, size=(size[0] * columns, size[1] * rows), **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)


def level_curves(
    shown: Mapping[str, Levels], levels: Sequence[str], *, axis: str, aims: Mapping[str, float] | None = None
) -> Figure:
    """One panel a number, which is named: mean over seeds with its standard error, against the level.

    A number that has an aim gets a dashed line there.
    """
    figure, axes = _grid(len(shown), size=(3.4, 3.4))
    for one, (title, of_rows) in zip(axes, shown.items(), strict=False):
        for place, (row, values) in enumerate(of_rows.items()):
            found = [summarize(list(at_level) or [math.nan]) for at_level in values]
            one.errorbar(
                np.arange(len(found)) + 0.06 * (place - (len(of_rows) - 1) / 2), [each.mean for each in found],
                yerr=[0 if math.isnan(each.standard_error) else each.standard_error for each in found],
                marker="o", markersize=4, capsize=2, linewidth=1.3, color=_COLORS[place % len(_COLORS)], label=row,
            )  # fmt: skip
        if aims and title in aims:
            one.axhline(aims[title], color="0.35", linestyle="--", linewidth=1)
        one.set_title(title, fontsize=10)
        one.set_xticks(np.arange(len(levels)), levels)
        one.grid(axis="y", color="0.92")
    figure.supxlabel(axis, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, title="mean, s.e.", title_fontsize=8)
    return figure
