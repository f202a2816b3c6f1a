"""Pictures of two clusters under repeated attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.mode_collapse.clusters import centre_distances, next_distance
from experiments.report.figures import panels

__all__ = ["distance_curves", "one_update", "trajectory_panels"]

FIRST, SECOND = "#d1495b", "#1b6ca8"
COLOURS = {"softmax": "#d1495b", "doubly normalised": "#1b6ca8"}
RATIOS = (1.0, 0.3, 0.1)


def trajectory_panels(trajectories: Mapping[str, Tensor], first: int, *, title: str) -> Figure:
    """Points ``[steps + 1, points, dim]`` step by step, one row an attention; the first of them are one cluster.

    Points in one dimension are spread out upwards.
    """
    steps, total, dim = next(iter(trajectories.values())).shape
    inches = (2.2 * steps, 0.8 + (1.0 if dim == 1 else 1.12) * len(trajectories))
    figure, axes = panels(len(trajectories), steps, size=inches, sharex=True, sharey=True)
    for row, (name, points) in zip(axes, trajectories.items(), strict=True):
        for step, (axis, at) in enumerate(zip(row, points, strict=True)):
            _scatter(axis, at, first)
            distance = centre_distances(at, first).item()
            axis.annotate(f"{distance:.2f}", (0.5, 0.97), xycoords="axes fraction", fontsize=8, ha="center", va="top")
            if axis in axes[0]:
                axis.set_title("start" if step == 0 else f"step {step}", fontsize=10)
        row[0].set_ylabel(name.replace(", ", ",\n").replace("doubly ", "doubly\n"), fontsize=10)
    for colour, size in ((FIRST, first), (SECOND, total - first)):
        axes[0, 0].plot([], [], "o", color=colour, markersize=5, label=f"{size} points")
    axes[0, 0].plot([], [], "x", color="0.3", markersize=8, label="centre (distance of both: the number)")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize=11)
    return figure


def _scatter(axis: Axes, points: Tensor, first: int) -> None:
    for colour, part in ((FIRST, points[:first]), (SECOND, points[first:])):
        x = part[:, 0].numpy()
        # in one dimension the height only keeps the points apart
        y = part[:, 1].numpy() if part.size(1) == 2 else np.linspace(-0.6, 0.6, len(x))
        axis.scatter(x, y, s=6, color=colour, alpha=0.35, linewidths=0)
        axis.plot(x.mean(), y.mean(), "x", color="white", markersize=9, markeredgewidth=3.2, zorder=3)
        axis.plot(x.mean(), y.mean(), "x", color=colour, markersize=8, markeredgewidth=1.8, zorder=3)
    if points.size(1) == 1:
        axis.set(ylim=(-1, 1.4), yticks=[])
    else:
        axis.set_aspect("equal")
        axis.margins(y=0.15)
    axis.tick_params(labelsize=8)


def distance_curves(distances: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> Figure:
    """Distance of the centres step by step: mean over seeds and range, a panel a setting.

    ``distances`` holds, for every setting and attention, one list of distances a seed.
    """
    rows = -(-len(distances) // 2)
    figure, axes = panels(rows, 2, size=(8.4, 2.9 * rows), sharex=True, sharey=True)
    for axis, (setting, found) in zip(axes.flat, distances.items(), strict=False):
        for name, seeds in found.items():
            values, base = np.array(seeds), name.removesuffix(", Weibull")
            steps = np.arange(values.shape[1])
            style = "-" if name == base else "o"
            # softmax is wide, for the other lies upon it where clusters are balanced
            width, size = (3, 8) if base == "softmax" else (1.4, 4)
            axis.plot(
                steps, values.mean(0), style, color=COLOURS[base], linewidth=width, markersize=size,
                markerfacecolor="white", clip_on=False, label=name,
            )  # fmt: skip
            axis.fill_between(steps, values.min(0), values.max(0), color=COLOURS[base], alpha=0.25, linewidth=0)
        axis.set_title(setting, fontsize=10)
        axis.set_xticks(steps)
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.supxlabel("step", fontsize=10)
    figure.supylabel("distance of the centres (band: all seeds)", fontsize=10)
    return figure


def one_update(measured: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Distance after one update against that before: the curves of equations (13) and (14), and what was measured."""
    figure, (axes,) = panels(1, 2, size=(8.4, 3.6), sharey=True)
    grid = np.linspace(0.02, 5, 250)
    for axis, (name, points) in zip(axes, measured.items(), strict=True):
        for ratio, width in zip(RATIOS, (2.2, 1.5, 0.9), strict=True):
            after = [next_distance(d, (1000, round(1000 * ratio)), doubly=name != "softmax") for d in grid]
            axis.plot(grid, after, color=COLOURS[name], linewidth=width, label=f"$N_2 / N_1$ = {ratio:g}")
        axis.plot(grid, grid, color="0.6", linewidth=1, linestyle=":", label="unchanged")
        axis.plot(*zip(*points, strict=True), "o", color="black", markersize=3.5, label="measured")
        axis.set_title(f"{name}, equation {'(13)' if name == 'softmax' else '(14)'}", fontsize=10)
        axis.set_xlabel("distance of the centres before")
        axis.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("after one update")
    return figure
