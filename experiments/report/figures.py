"""Pictures: of studies, of weights over a photograph, and of how honest probabilities are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.files import write_atomic
from experiments.report.statistics import paired_difference, summarize
from pyro_attention.plots import reliability

_LINE = "#1b6ca8"
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


def printable(text: str, longest: int = 100) -> str:
    """Text without mathematics, and without the endless words and control characters of an untrained network."""
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text).replace("$", r"\$")


def reliability_diagram(predictions: Mapping[str, tuple[Tensor, Tensor]]) -> Figure:
    """Accuracy against confidence, one panel a row of the comparison; on the diagonal confidence is honest.

    Args:
        predictions: Name to (probabilities ``[items, classes]``, labels ``[items]``).
    """
    found = {}
    for name, (probabilities, labels) in predictions.items():
        confidence, predicted = probabilities.max(-1)
        found[name] = confidence, predicted == labels
    return reliability_panels(found, confidence="confidence: probability of the predicted class", right="accuracy")


def reliability_panels(found: Mapping[str, tuple[Tensor, Tensor]], *, confidence: str, right: str) -> Figure:
    """Share of what is right against its probability, one panel a name; on the diagonal probabilities are honest.

    Args:
        found: Name to (probabilities ``[items]``, whether each item is right ``[items]``).
        confidence: What the probabilities are, for the axis.
        right: What the share is.
    """
    columns = min(4, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(2.9 * columns, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (name, items) in zip(axes.flat, found.items(), strict=False):
        reliability(*items, axes=axis)
        axis.set(xlabel="", ylabel="")
        axis.set_title(name, fontsize=10)
    for axis in axes.flat[len(found) - columns : len(found)]:
        axis.tick_params(labelbottom=True)  # also above a place that is left empty
    axes[0, 0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel(confidence)
    figure.supylabel(right)
    return figure


@dataclass(frozen=True)
class Panel:
    """Numbers of the rows of one panel.

    Attributes:
        title: What they are.
        values: One number a seed, by row; in :func:`level_curves` by row and level.
        paper: The paper's numbers, by row.
    """

    title: str
    values: Mapping[str, Sequence[Sequence[float]]]
    paper: Mapping[str, float] = field(default_factory=dict)


def _grid(count: int, *, size: tuple[float, float], **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with that many panels of a size, so many beside each other that they can be read on a page."""
    columns = 2 if count == 4 else min(count, int(_PAGE // size[0]))
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, size=(size[0] * columns, size[1] * rows), **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat)


def row_intervals(shown: Sequence[Panel]) -> Figure:
    """Every seed's number, the row's mean with its 95 % interval, and the paper's number; the first row is a line."""
    rows = list(shown[0].values)
    figure, axes = _grid(len(shown), size=(5.2, 0.9 + 0.5 * len(rows)), sharey=True)
    for axis, panel in zip(axes, shown, strict=False):
        _intervals(axis, panel)
        axis.set_title(panel.title, fontsize=11)
    axes[0].set_yticks(range(len(rows)), rows)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _intervals(axis: Axes, panel: Panel) -> None:
    (first, [baseline]), *_ = panel.values.items()
    axis.axvline(float(np.mean(baseline)), color="0.6", linewidth=1, linestyle=":", label=f"mean of {first}")
    for place, (row, [values]) in enumerate(panel.values.items()):
        # one entry of the legend for all rows
        seed, mean, paper = ("a seed", "mean, 95 % interval", "paper") if place == 0 else ("_nolegend_",) * 3
        axis.plot(values, np.full(len(values), place + 0.18), "|", color="0.55", markersize=7, label=seed)
        if len(values) > 1:
            found = paired_difference(values, [0.0] * len(values))
            errors = [[found.mean - found.low], [found.high - found.mean]]
            axis.errorbar(
                [found.mean], [place - 0.08], xerr=errors, label=mean, fmt="o", color="#1b6ca8", capsize=3, markersize=5
            )
        if row in panel.paper:
            axis.plot([panel.paper[row]], [place - 0.08], "D", color="#d1495b", markersize=5, label=paper)
    axis.grid(axis="x", color="0.92")
    axis.set_axisbelow(True)


def level_curves(shown: Sequence[Panel], levels: Sequence[str], *, axis: str) -> Figure:
    """One panel a number: mean over seeds with its standard error, against the level."""
    figure, axes = _grid(len(shown), size=(3.4, 3.4))
    for one, panel in zip(axes, shown, strict=False):
        for place, (row, values) in enumerate(panel.values.items()):
            found = [summarize(list(at_level) or [math.nan]) for at_level in values]
            one.errorbar(
                np.arange(len(found)) + 0.06 * (place - (len(panel.values) - 1) / 2), [each.mean for each in found],
                yerr=[0 if math.isnan(each.standard_error) else each.standard_error for each in found],
                marker="o", markersize=4, capsize=2, linewidth=1.3, color=_COLORS[place % len(_COLORS)], label=row,
            )  # fmt: skip
        one.set_title(panel.title, fontsize=10)
        one.set_xticks(np.arange(len(levels)), levels)
        one.grid(axis="y", color="0.92")
    figure.supxlabel(axis, fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, title="mean, s.e.", title_fontsize=8)
    return figure
