"""Do two clusters of points survive repeated attention? Softmax, doubly normalised, and both with sampled weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_run
from experiments.harness.results import write_environment, write_metrics
from experiments.mode_collapse.clusters import ATTENTIONS, centre_distances, clusters, next_distance, trajectory
from experiments.mode_collapse.config import ModeCollapseConfig
from experiments.report.columns import Row
from experiments.report.figures import panels, save
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS, source_of, write_results
from experiments.report.statistics import Estimate, summarize

__all__ = ["run"]

CASES = {"225 + 225": (225, 225), "500 + 50": (500, 50)}
DIMS = (1, 2)
FIRST, SECOND = "#d1495b", "#1b6ca8"  # colors of the clusters


@dataclass(frozen=True)
class _Setting:
    """A number of dimensions and of points, and what was found: attention to one trajectory a seed."""

    dim: int
    case: str
    trajectories: Mapping[str, list[Tensor]]

    @property
    def name(self) -> str:
        return f"{self.dim}-D, {self.case}"

    @property
    def first(self) -> int:
        return CASES[self.case][0]

    def distances(self, attention: str) -> list[list[float]]:
        """Distance of the centres at each step, one list a seed."""
        return [centre_distances(points, self.first).tolist() for points in self.trajectories[attention]]

    def steps(self, attention: str) -> list[Estimate]:
        """Mean and spread of that distance over seeds, at each step."""
        return [summarize(values, 3) for values in zip(*self.distances(attention), strict=True)]


@exclusive
def run(config: ModeCollapseConfig) -> dict[str, float]:
    """Follow the clusters, print the table, and write metrics, pictures, report and results/."""
    results, folder = config.results or RESULTS, config.out or Path("runs", "mode_collapse")
    open_run(folder, config, free=("results",))
    settings = [_follow(config, dim, case) for dim in DIMS for case in CASES]
    metrics, definitions = _metrics(settings)
    write_metrics(folder, metrics, definitions)
    write_environment(folder, torch.device("cpu"))
    table = Part(text=_text(config, metrics), rows=[_row(setting, name) for setting in settings for name in ATTENTIONS])
    parts = [table, *_pictures(settings, folder / "figures", results)]
    report = Report("Mode collapse: two clusters under repeated attention", "mode-collapse", parts)
    source = source_of([folder], command_line("experiments.mode_collapse", config))
    report.write(folder, source)
    print(write_results(results, report, source))
    return metrics


def _follow(config: ModeCollapseConfig, dim: int, case: str) -> _Setting:
    points = clusters(CASES[case], config.distance, dim=dim, deviation=0.0 if dim == 1 else config.deviation)
    found = {
        name: [
            trajectory(points, attention, steps=config.steps, concentration=config.concentration, seed=seed)
            for seed in range(config.seeds if attention.stochastic else 1)
        ]
        for name, attention in ATTENTIONS.items()
    }
    return _Setting(dim, case, found)


def _metrics(settings: list[_Setting]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics: ``"<dimensions>/<points>/<attention>/step<i>"`` and the largest error; and what they mean."""
    metrics, errors = {}, [0.0]
    for setting in settings:
        for name, attention in ATTENTIONS.items():
            for step, found in enumerate(setting.steps(name)):
                key = f"{setting.dim}d/{setting.case}/{name}/step{step}"
                metrics[key] = found.mean
                if found.count > 1:
                    metrics[f"{key}/spread"] = found.spread
            if setting.dim == 1 and not attention.stochastic:
                sizes = CASES[setting.case]
                errors += [
                    abs(after - next_distance(before, sizes, doubly=attention.doubly))
                    for before, after in pairwise(setting.distances(name)[0])
                ]
    texts = ("distance of the centres, mean over seeds", "standard deviation of that distance over seeds")
    definitions = {name: texts[name.endswith("/spread")] for name in metrics}
    definitions["closed_form_error"] = "largest difference from equations (13) and (14) over all updates in 1-D"
    return metrics | {"closed_form_error": max(errors)}, definitions


def _row(setting: _Setting, name: str) -> Row:
    # every seed starts from the same points
    steps = {
        f"step {i}" if i else "start": found if i else replace(found, spread=math.nan)
        for i, found in enumerate(setting.steps(name))
    }
    return {"clusters": setting.name, "attention": name, **steps}


def _text(config: ModeCollapseConfig, metrics: Mapping[str, float]) -> str:
    return (
        f"Distance of the centres of two clusters, {config.distance:g} apart at the start, after each step of "
        f"self-attention with a Gaussian kernel of unit variance, without projections or residual connections. In one "
        f"dimension all points of a cluster are in one place; in two they are Gaussian with standard deviation "
        f"{config.deviation:g} (the paper does not give its distances). Weibull: weights drawn from a Weibull "
        f"posterior of concentration {config.concentration:g}, mean ± standard deviation over {config.seeds} seeds of "
        f"the weights, points being the same. In one dimension every deterministic update agrees with equations (13) "
        f"and (14) of Ding et al. (2020) within {metrics['closed_form_error']:.1g}."
    )


def _pictures(settings: list[_Setting], folder: Path, results: Path) -> list[Part]:
    """Points of every setting, step by step; those of the last one are published."""
    parts = []
    for setting in settings:
        points = {name: seeds[0] for name, seeds in setting.trajectories.items()}
        figure = _panels(points, setting.first, title=f"{setting.name} (Weibull: one draw)")
        path = folder / f"points-{setting.dim}d-{setting.case.replace(' + ', '-')}.png"
        if last := setting is settings[-1]:
            path = results / "pictures" / "mode_collapse.png"
        parts.append(Part(picture=save(figure, path), caption=f"Points: {setting.name}", published=last))
    return parts


def _panels(trajectories: Mapping[str, Tensor], first: int, *, title: str) -> Figure:
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
