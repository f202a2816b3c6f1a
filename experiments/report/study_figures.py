"""Pictures of a study: every row with its interval, and numbers against the levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.report.columns import Column, Runs, columns_of
from experiments.report.figures import panels
from experiments.report.statistics import paired_difference, summarize

_COLORS = ("0.35", "#1b6ca8", "#d1495b", "#2a9d8f", "#e9a23b", "#7b5ea7")


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


def column_plots(runs: Mapping[str, Runs], columns: Sequence[Column]) -> list[Figure]:
    """A picture of every column that says what is better, of the rows that have it."""
    shown = [column for column in columns_of(runs, columns) if column.better is not None]
    rows = [{name: [values] for name, found in runs.items() if (values := one.values(found))} for one in shown]
    titles = [f"{column.name}, {column.better} is better" for column in shown]
    return [row_intervals([Panel(title, values)]) for title, values in zip(titles, rows, strict=True)]


def row_intervals(shown: Sequence[Panel]) -> Figure:
    """Every seed's number, the row's mean with its 95 % interval, and the paper's number; the first row is a line."""
    rows = list(shown[0].values)
    figure, (axes,) = panels(1, len(shown), size=(5.2 * len(shown), 0.9 + 0.5 * len(rows)), sharey=True)
    for axis, panel in zip(axes, shown, strict=True):
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
    figure, (axes,) = panels(1, len(shown), size=(3.4 * len(shown), 3.4))
    for one, panel in zip(axes, shown, strict=True):
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
