"""Do two clusters of points survive repeated attention? Softmax, doubly normalised, and both with sampled weights.

Ding et al. (2020), Attention that does not Explain Away, appendix E; equations (13) and (14) say how clusters without
extent approach each other.
"""

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
from experiments.mode_collapse.config import ModeCollapseConfig
from experiments.report.columns import Row
from experiments.report.figures import panels, save
from experiments.report.report import Part, Report
from experiments.report.results import RESULTS, source_of, write_results
from experiments.report.statistics import Estimate, summarize
from pyro_attention import AttentionGuide, DoublyNormalized, FixedGammaPrior, LatentAttention, Soft, Softmax, Weibull
from pyro_attention.posterior.predictive import seeded

CASES = {"225 + 225": (225, 225), "500 + 50": (500, 50)}
DIMS = (1, 2)
DISTANCE = 3.0  # of the centres at the start
DEVIATION = 0.3  # of a cluster in each of two dimensions; in one dimension it is 0
# whether weights are doubly normalised instead of softmax, and drawn from a Weibull posterior
ATTENTIONS = {
    "softmax": (False, False),
    "doubly normalised": (True, False),
    "softmax, Weibull": (False, True),
    "doubly normalised, Weibull": (True, True),
}
FIRST, SECOND = "#d1495b", "#1b6ca8"  # colors of the clusters


def clusters(sizes: tuple[int, int], distance: float, *, dim: int, deviation: float) -> Tensor:
    """Points of the first cluster, around the origin, and of the second: ``[first + second, dim]``, float64."""
    generator = torch.Generator().manual_seed(0)
    points = deviation * torch.randn(sum(sizes), dim, generator=generator, dtype=torch.float64)
    points[sizes[0] :, 0] += distance
    return points


def trajectory(points: Tensor, attention: str, *, steps: int, concentration: float = 1.0, seed: int = 0) -> Tensor:
    r"""Points after each self-attention, :math:`\Phi_{ij} = -\tfrac12 |x_i - x_j|^2`: ``[steps + 1, points, dim]``.

    There are no projections and no residual connections; the weights come from the library's layer and guide.
    """
    doubly, stochastic = ATTENTIONS[attention]
    normalizer = DoublyNormalized() if doubly else Softmax()
    layer = LatentAttention("attention", FixedGammaPrior(), normalizer=normalizer).double()

    def model(points: Tensor) -> Tensor:
        scores = -0.5 * torch.cdist(points, points).square()
        context: Tensor = layer(scores.unsqueeze(0), points.unsqueeze(0)).context
        return context.squeeze(0)

    family = Weibull(concentration) if stochastic else Soft()
    guide = AttentionGuide(model, family.double())
    found = [points]
    with torch.no_grad(), seeded(seed):
        for _ in range(steps):
            found.append(guide.run(found[-1]).output)
    return torch.stack(found)


def centre_distances(points: Tensor, first: int) -> Tensor:
    """Distance between the means of the first points and of the others, for points ``[..., points, dim]``."""
    return (points[..., :first, :].mean(-2) - points[..., first:, :].mean(-2)).norm(dim=-1)


def next_distance(distance: float, sizes: tuple[int, int], *, doubly: bool) -> float:
    r"""Distance of two clusters without extent after one update.

    .. math:: D' = D\, \frac{1 - w^2}{(1 + r w)(1 + w / r)}, \qquad w = e^{-D^2/2}, \quad r = N_2 / N_1

    For doubly normalised attention r becomes :math:`r\,(1 + r w) / (w + r)`, which is nearer to 1.
    """
    w, r = math.exp(-0.5 * distance**2), sizes[1] / sizes[0]
    if doubly:
        r *= (1 + r * w) / (w + r)
    return distance * (1 - w**2) / ((1 + r * w) * (1 + w / r))


@dataclass(frozen=True)
class _Setting:
    """A number of dimensions and of points, and what was found: attention to one trajectory a seed."""

    dim: int
    case: str
    trajectories: Mapping[str, list[Tensor]]

    @property
    def first(self) -> int:
        return CASES[self.case][0]

    def steps(self, attention: str) -> list[Estimate]:
        """Distance of the centres at each step, mean and spread over seeds."""
        seeds = [centre_distances(points, self.first).tolist() for points in self.trajectories[attention]]
        return [summarize(values, 3) for values in zip(*seeds, strict=True)]


@exclusive
def run(config: ModeCollapseConfig) -> dict[str, float]:
    """Follow the clusters, print the table, and write metrics, pictures, report and results/."""
    results, folder = config.results or RESULTS, config.out or Path("runs", "mode_collapse")
    open_run(folder, config, free=("results",))
    settings = [_follow(config, dim, case) for dim in DIMS for case in CASES]
    metrics, definitions = _metrics(settings)
    write_metrics(folder, metrics, definitions)
    write_environment(folder, torch.device("cpu"))
    rows = list[Row]()
    for setting in settings:
        for name in ATTENTIONS:
            start, *steps = setting.steps(name)  # every seed starts from the same points
            rows.append({"clusters": f"{setting.dim}-D, {setting.case}", "attention": name})
            rows[-1] |= {"start": replace(start, spread=math.nan)}
            rows[-1] |= {f"step {number}": found for number, found in enumerate(steps, 1)}
    text = (
        f"Distance of the centres of two clusters, {DISTANCE:g} apart at the start, after each step of self-attention "
        f"with a Gaussian kernel of unit variance, without projections or residual connections. In one dimension all "
        f"points of a cluster are in one place; in two they are Gaussian with standard deviation {DEVIATION:g} (the "
        f"paper does not give its distances). Weibull: weights drawn from a Weibull posterior of concentration "
        f"{config.concentration:g}, mean ± standard deviation over {config.seeds} seeds of the weights, points being "
        f"the same. In one dimension every deterministic update agrees with equations (13) and (14) of Ding et al. "
        f"(2020) within {metrics['closed_form_error']:.1g}."
    )
    parts = [Part(text=text, rows=rows, labels=2), *_pictures(settings, folder / "figures", results)]
    report = Report("Mode collapse: two clusters under repeated attention", "mode-collapse", parts)
    source = source_of([folder], command_line("experiments.mode_collapse", config))
    report.write(folder, source)
    print(write_results(results, report, source))
    return metrics


def _follow(config: ModeCollapseConfig, dim: int, case: str) -> _Setting:
    points = clusters(CASES[case], DISTANCE, dim=dim, deviation=0.0 if dim == 1 else DEVIATION)
    options = {"steps": config.steps, "concentration": config.concentration}
    found = {
        name: [trajectory(points, name, **options, seed=seed) for seed in range(config.seeds if stochastic else 1)]
        for name, (_, stochastic) in ATTENTIONS.items()
    }
    return _Setting(dim, case, found)


def _metrics(settings: list[_Setting]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics: ``"<dimensions>/<points>/<attention>/step<i>"`` and the largest error; and what they mean."""
    metrics, errors = dict[str, float](), [0.0]
    for setting in settings:
        for name, (doubly, stochastic) in ATTENTIONS.items():
            steps = setting.steps(name)
            for step, found in enumerate(steps):
                key = f"{setting.dim}d/{setting.case}/{name}/step{step}"
                metrics |= {key: found.mean} | ({f"{key}/spread": found.spread} if found.count > 1 else {})
            if setting.dim == 1 and not stochastic:
                for one, other in pairwise(steps):
                    expected = next_distance(one.mean, CASES[setting.case], doubly=doubly)
                    errors.append(abs(other.mean - expected))
    texts = ("distance of the centres, mean over seeds", "standard deviation of that distance over seeds")
    definitions = {name: texts[name.endswith("/spread")] for name in metrics}
    definitions["closed_form_error"] = "largest difference from equations (13) and (14) over all updates in 1-D"
    return metrics | {"closed_form_error": max(errors)}, definitions


def _pictures(settings: list[_Setting], folder: Path, results: Path) -> list[Part]:
    """Points of every setting, step by step; those of the last one are published."""
    parts = []
    for setting in settings:
        path = folder / f"points-{setting.dim}d-{setting.case.replace(' + ', '-')}.png"
        if last := setting is settings[-1]:
            path = results / "pictures" / "mode_collapse.png"
        name = f"{setting.dim}-D, {setting.case}"
        figure = _panels(setting, title=f"{name} (Weibull: one draw)")
        parts.append(Part(picture=save(figure, path), caption=f"Points: {name}", published=last))
    return parts


def _panels(setting: _Setting, *, title: str) -> Figure:
    """Points step by step, one row an attention; points in one dimension are spread out upwards."""
    trajectories = {name: seeds[0] for name, seeds in setting.trajectories.items()}
    steps = len(trajectories["softmax"])
    inches = (2.2 * steps, 0.8 + (1.0 if setting.dim == 1 else 1.12) * len(trajectories))
    figure, axes = panels(len(trajectories), steps, size=inches, sharex=True, sharey=True)
    for row, (name, points) in zip(axes, trajectories.items(), strict=True):
        for axis, at in zip(row, points, strict=True):
            _scatter(axis, at, setting.first)
            distance = centre_distances(at, setting.first).item()
            axis.annotate(f"{distance:.2f}", (0.5, 0.97), xycoords="axes fraction", fontsize=8, ha="center", va="top")
        row[0].set_ylabel(name.replace(", ", ",\n").replace("doubly ", "doubly\n"), fontsize=10)
    for step, axis in enumerate(axes[0]):
        axis.set_title(f"step {step}" if step else "start", fontsize=10)
    for colour, size in zip((FIRST, SECOND), CASES[setting.case], strict=True):
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
