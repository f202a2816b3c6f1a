"""Do two clusters of points survive repeated attention? Softmax, doubly normalized, and both with sampled weights.

Ding et al. (2020), Attention that does not Explain Away, appendix E; equations (13) and (14) say how clusters without
extent approach each other. The row with estimated variances, and several updates a step, are the ablations of section
3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.cli import command_line
from experiments.folder import open_run, write_environment, write_metrics
from experiments.mode_collapse.config import ModeCollapseConfig
from experiments.report.figures import panels, save
from experiments.report.report import Part, Report, publish, results_folder, source_of
from experiments.report.statistics import Estimate, Row, summarize
from pyro_attention import AttentionGuide, DoublyNormalized, FixedGammaPrior, LatentAttention, Soft, Weibull
from pyro_attention.normalizers import Softmax
from pyro_attention.posterior.predictive import seeded

CASES = {"225 + 225": (225, 225), "500 + 50": (500, 50)}
DISTANCE = 3.0  # distance of the centers at the start
DEVIATION = 0.3  # standard deviation of a cluster in two dimensions; it is 0 in one
SMALLEST_VARIANCE = 1e-6  # where variances are estimated; they would become zero, and a density infinite


class Attention(NamedTuple):
    """Self-attention of a row of the tables."""

    doubly: bool  # weights are doubly normalized instead of softmax
    drawn: bool  # weights are drawn from a Weibull posterior
    estimates_variance: bool = False  # every center estimates the variance of the points that it explains


ATTENTIONS = {
    "softmax": Attention(doubly=False, drawn=False),
    "doubly normalized": Attention(doubly=True, drawn=False),
    "softmax, Weibull": Attention(doubly=False, drawn=True),
    "doubly normalized, Weibull": Attention(doubly=True, drawn=True),
    "doubly normalized, variances": Attention(doubly=True, drawn=False, estimates_variance=True),
}
_COLORS = ("#d1495b", "#1b6ca8")  # of the clusters


def clusters(sizes: tuple[int, int], distance: float, *, dim: int, deviation: float) -> Tensor:
    """Draw the points of a cluster around the origin and of a second one, ``[first + second, dim]``, float64."""
    generator = torch.Generator().manual_seed(0)
    points = deviation * torch.randn(sum(sizes), dim, generator=generator, dtype=torch.float64)
    points[sizes[0] :, 0] += distance
    return points


def trajectory(
    points: Tensor, attention: str, *, steps: int, iterations: int = 1, concentration: float = 1.0, seed: int = 0
) -> Tensor:
    r"""Return the points after each self-attention, ``[steps + 1, points, dim]``.

    Scores are the log densities of the points x under Gaussians around the centers c, :math:`\Phi_{ij} = -\tfrac12
    |c_i - x_j|^2 / v_i - \tfrac{d}{2} \log v_i`, and the new centers are :math:`c_i' = \sum_j W_{ij} x_j`. A step
    begins with the points as centers and has one update of them or several ``iterations``; its last centers are the
    points of the next step. The variances are :math:`v_i = 1`, or estimated as in the EM algorithm, :math:`v_i =
    \sum_j W_{ij} |x_j - c_i'|^2 / d` after each update. There are no projections and no residual connections; the
    weights come from the library's layer and guide.
    """
    kind, dim = ATTENTIONS[attention], points.size(-1)
    normalizer = DoublyNormalized() if kind.doubly else Softmax()
    layer = LatentAttention("attention", FixedGammaPrior(), normalizer=normalizer).double()

    def model(centers: Tensor, points: Tensor, variances: Tensor) -> Tensor:
        squared = torch.cdist(centers, points).square()
        scores = -0.5 * (squared / variances + dim * variances.log())
        weights: Tensor = layer(scores.unsqueeze(0), points.unsqueeze(0)).weights
        return weights.squeeze(0)

    family = Weibull(concentration) if kind.drawn else Soft()
    guide = AttentionGuide(model, family.double())
    trajectory_points, variances = [points], torch.ones(len(points), 1, dtype=points.dtype)
    with torch.no_grad(), seeded(seed):
        for _ in range(steps):
            centers = points = trajectory_points[-1]
            for _ in range(iterations):
                weights: Any = guide.run(centers, points, variances).output
                centers = weights @ points
                if kind.estimates_variance:
                    squared = torch.cdist(centers, points).square()
                    variances = ((weights * squared).sum(-1, keepdim=True) / dim).clamp_min(SMALLEST_VARIANCE)
            trajectory_points.append(centers)
    return torch.stack(trajectory_points)


def center_distances(points: Tensor, first: int) -> Tensor:
    """Return the distance between the means of the first points and of the rest, for points ``[..., points, dim]``."""
    return (points[..., :first, :].mean(-2) - points[..., first:, :].mean(-2)).norm(dim=-1)


def next_distance(distance: float, sizes: tuple[int, int], *, doubly: bool) -> float:
    r"""Return the distance of two clusters without extent after one update.

    .. math:: D' = D\, \frac{1 - w^2}{(1 + r w)(1 + w / r)}, \qquad w = e^{-D^2/2}, \quad r = N_2 / N_1

    For doubly normalized attention r becomes :math:`r\,(1 + r w) / (w + r)`, which is nearer to 1.
    """
    w, r = math.exp(-0.5 * distance**2), sizes[1] / sizes[0]
    if doubly:
        r *= (1 + r * w) / (w + r)
    return distance * (1 - w**2) / ((1 + r * w) * (1 + w / r))


def run(config: ModeCollapseConfig) -> dict[str, float]:
    """Follow the clusters, print the table, and write metrics, picture, report and results/."""
    with open_run(config.out or Path("runs", "mode_collapse"), config, free=("results",)) as folder:
        return follow_clusters(config, folder)


def follow_clusters(config: ModeCollapseConfig, folder: Path) -> dict[str, float]:
    """Run the command in its folder, which this process holds."""
    results = results_folder(config)
    metrics, errors, rows, pictured = dict[str, float](), [0.0], list[Row](), dict[str, Tensor]()
    for dim, (case, sizes), attention in product((1, 2), CASES.items(), ATTENTIONS):
        kind = ATTENTIONS[attention]
        points = clusters(sizes, DISTANCE, dim=dim, deviation=0.0 if dim == 1 else DEVIATION)
        seeds = range(config.seeds if kind.drawn else 1)
        trajectories = torch.stack(
            [
                trajectory(
                    points, attention, steps=config.steps, iterations=config.iterations,
                    concentration=config.concentration, seed=seed,
                )
                for seed in seeds
            ]
        )  # fmt: skip
        steps = [summarize(values, 3) for values in center_distances(trajectories, sizes[0]).T.tolist()]
        metrics |= {f"{dim}d/{case}/{attention}/step{step}": at.mean for step, at in enumerate(steps)}
        if dim == 1 and config.iterations == 1 and not kind.drawn and not kind.estimates_variance:
            errors += [abs(next_distance(a.mean, sizes, doubly=kind.doubly) - b.mean) for a, b in pairwise(steps)]
        start = Estimate(steps[0].mean, digits=3)  # every seed starts from the same points
        distances = {f"step {number}": at for number, at in enumerate(steps[1:], 1)}
        rows.append({"clusters": f"{dim}-D, {case}", "attention": attention, "start": start, **distances})
        pictured[attention] = trajectories[0]  # the last clusters replace the earlier ones
    if config.iterations == 1:  # the equations say nothing of more updates
        metrics["closed_form_error"] = max(errors)
    write_metrics(folder, metrics)
    write_environment(folder, torch.device("cpu"))
    text = (
        f"Distance of the centers of two clusters, {DISTANCE:g} apart at the start, after each step of self-attention "
        f"with a Gaussian kernel of unit variance, without projections or residual connections. In one dimension all "
        f"points of a cluster are in one place; in two they are Gaussian with standard deviation {DEVIATION:g} (the "
        f"paper does not give its distances). Weibull: weights drawn from a Weibull posterior of concentration "
        f"{config.concentration:g}, mean ± standard deviation over {config.seeds} seeds of the weights, points being "
        f"the same. Variances: each new center also estimates the variance of the points that it explains, as EM "
        f"routing does (at least {SMALLEST_VARIANCE:g}), and the next update has it in its kernel. Updates of the "
        f"centers (equation 8) in each step: {config.iterations}."
    )
    if config.iterations == 1:
        text += (
            f" In one dimension every deterministic update with unit variance agrees with equations (13) and (14) of "
            f"Ding et al. (2020) within {metrics['closed_form_error']:.1g}."
        )
    pictures = folder / "figures" if results is None else results / "pictures"
    picture = save(points_figure(pictured, sizes), pictures / "mode_collapse.png")
    parts = [Part(text=text, rows=rows, labels=2), Part(picture=picture, caption=f"Points: 2-D, {case}")]
    report = Report("Mode collapse: two clusters under repeated attention", "mode-collapse", parts)
    source = source_of([folder], command_line("experiments.mode_collapse", config))
    report.write(folder, source)
    publish(results, report, source)
    return metrics


def points_figure(shown: Mapping[str, Tensor], sizes: tuple[int, int]) -> Figure:
    """Draw points ``[steps + 1, points, 2]`` of clusters of these sizes step by step, with a row for each attention."""
    steps = len(next(iter(shown.values())))
    size = 2.2 * steps, 0.8 + 1.12 * len(shown)
    figure, axes = panels(len(shown), steps, size=size, sharex=True, sharey=True)
    for row, (attention, points) in zip(axes, shown.items(), strict=True):
        for step, (axis, at) in enumerate(zip(row, points, strict=True)):
            for color, part in zip(_COLORS, at.split(sizes), strict=True):
                axis.scatter(*part.T.numpy(), s=6, color=color, alpha=0.35, linewidths=0, label=f"{len(part)} points")
                axis.plot(*part.mean(0).tolist(), "x", color=color, markersize=8, markeredgewidth=1.8, zorder=3)
            distance = center_distances(at, sizes[0]).item()
            axis.set_title(f"{f'step {step}' if step else 'start'}: {distance:.2f}", fontsize=9)
            axis.tick_params(labelsize=8)
        row[0].set_ylabel(attention.replace(", ", ",\n").replace("doubly ", "doubly\n"), fontsize=10)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=3, frameon=False)
    for axis in axes[-1]:
        axis.set_xlabel("first coordinate", fontsize=8)
    title = "Two clusters after each step of self-attention"
    figure.suptitle(f"{title}\n(crosses: centers; number: their distance; Weibull: one draw)", fontsize=11)
    return figure
