"""Pictures of attention with uncertainty, on matplotlib: every function draws into one Axes and returns it.

Install ``pyro_attention[plots]``. Without ``axes`` a picture gets a figure of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pyro_attention.analysis import credible_intervals, selective_accuracy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["intervals", "neighbors", "patches", "reliability", "risk_coverage"]

BLUE, GREY = "#1b6ca8", "0.6"


def reliability(confidence: Tensor, right: Tensor, *, bins: int = 10, axes: Axes | None = None) -> Axes:
    """Share of what is right against its probability; on the diagonal probabilities can be believed.

    Args:
        confidence: Probabilities ``[items]``.
        right: Whether each item is right, ``[items]``.
        bins: Number of bins of equal width; grey bars show the share of the items in each.
        axes: Where to draw.

    Example:
        >>> confidence = torch.rand(1000)
        >>> axes = reliability(confidence, torch.rand(1000) < confidence)
        >>> axes.get_xlabel()
        'probability'
    """
    axes = _axes(axes)
    place = (confidence * bins).long().clamp(max=bins - 1)
    count, mean, share = (
        torch.zeros(bins, dtype=torch.float64).index_add_(0, place, each.double())
        for each in (torch.ones_like(confidence), confidence, right)
    )
    seen = count > 0
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--")
    centers = (torch.arange(bins) + 0.5) / bins
    axes.bar(_array(centers), _array(count / count.sum()), width=0.9 / bins, color="0.85", label="items")
    line = _array((mean / count)[seen]), _array((share / count)[seen])
    axes.plot(*line, color=BLUE, marker="o", markersize=4, label="right")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability", ylabel="share that is right")
    return axes


def risk_coverage(confidence: Tensor, right: Tensor, *, label: str = "", axes: Axes | None = None) -> Axes:
    """Error of the surest items against their share: how much can be had at which error.

    Args:
        confidence: ``[items]``, larger is surer; only its order matters.
        right: Whether each item is right, or soft accuracies from 0 to 1, ``[items]``.
        label: Name of the curve, for a legend.
        axes: Where to draw.

    Example:
        >>> axes = risk_coverage(torch.tensor([0.9, 0.6, 0.8]), torch.tensor([True, False, True]), label="network")
        >>> round(axes.lines[-1].get_ydata()[-1].item(), 2)
        33.33

    Source: Geifman and El-Yaniv (2017), Selective Classification for Deep Neural Networks.
    """
    axes, curve = _axes(axes), selective_accuracy(confidence, right)
    axes.plot(_array(100 * curve.coverage), _array(100 * (1 - curve.accuracy)), label=label)
    axes.set(xlim=(0, 100), xlabel="share of the surest items, %", ylabel="error, %")
    axes.set_ylim(bottom=0)
    return axes


def intervals(
    samples: Tensor, labels: Sequence[str], *, level: float = 0.9, color: str = BLUE, axes: Axes | None = None
) -> Axes:
    """Mean weights of one row of attention as bars, with their credible intervals.

    Args:
        samples: Posterior samples ``[S, N]``.
        labels: Names of the keys.
        level: Posterior mass of each interval.
        color: Color of the bars.
        axes: Where to draw.

    Example:
        >>> axes = intervals(torch.rand(100, 3).softmax(-1), ["the", "red", "house"])
        >>> axes.get_ylabel()
        'weight, 90 % interval'
    """
    axes, found = _axes(axes), credible_intervals(samples.unsqueeze(1), level=level)
    places = range(samples.size(1))
    axes.bar(places, _array(found.mean[0]), color=color, alpha=0.55)
    axes.vlines(places, _array(found.low[0]), _array(found.high[0]), color="black")
    axes.set_xticks(places, labels, rotation=60 if max(map(len, labels)) > 2 else 0)
    axes.set(ylim=(0, 1), ylabel=f"weight, {100 * level:.0f} % interval")
    return axes


def patches(
    picture: Tensor, weights: Tensor | None, grid: tuple[int, int], *, top: float | None = None, cmap: str = "viridis",
    axes: Axes | None = None,
) -> Axes:  # fmt: skip
    """A picture with the weights of its patches, or what else they have, as colors below its ink.

    Args:
        picture: ``[height, width]``, 0 is paper and 1 is ink, or a photograph ``[3, height, width]`` from 0 to 255.
        weights: Of all patches, row by row, ``[rows * columns]``: mean weights, or widths of their intervals; None for
            the picture alone.
        grid: Rows and columns.
        top: Weight of the last color; the largest weight when omitted.
        cmap: Color map; its scale is ``axes.images[0]``.
        axes: Where to draw.

    Example:
        >>> axes = patches(torch.rand(8, 8), torch.rand(4).softmax(-1), (2, 2))
        >>> axes.images[0].get_array().shape
        (2, 2)
    """
    axes, photograph = _axes(axes), picture.dim() == 3
    ink = 1 - picture.float().mean(0) / 255 if photograph else picture.float()
    extent = (-0.5, ink.size(1) - 0.5, ink.size(0) - 0.5, -0.5)
    axes.set(xticks=[], yticks=[])
    if weights is None:
        shown = picture.permute(1, 2, 0) / 255 if photograph else 1 - picture.float()
        axes.imshow(_array(shown), cmap="gray", vmin=0, vmax=1, extent=extent)
        return axes
    smooth = "bicubic" if photograph else "nearest"
    axes.imshow(_array(weights.reshape(grid)), cmap=cmap, vmin=0, vmax=top, extent=extent, interpolation=smooth)
    # black that is transparent where the picture is light
    layer = torch.zeros(*ink.shape, 4)
    layer[..., 3] = ink * (0.75 if photograph else 1)
    axes.imshow(_array(layer), extent=extent)
    return axes


def neighbors(
    samples: Tensor, labels: Sequence[str], *, center: str, colors: Sequence[str] | None = None,
    axes: Axes | None = None,
) -> Axes:  # fmt: skip
    """A node in the middle of its neighbors; edges are as thick as their mean weight, and pale where they are unsure.

    Args:
        samples: Posterior samples of the weights of its incoming edges, ``[S, edges]``.
        labels: Names of the neighbors, in the order of the edges.
        center: Name of the node.
        colors: Of the edges.
        axes: Where to draw.

    Example:
        >>> axes = neighbors(torch.rand(100, 3).softmax(-1), ["a", "b", "c"], center="x")
        >>> len(axes.lines)
        3
    """
    axes, mean, spread = _axes(axes), samples.mean(0), samples.std(0)
    angles = torch.pi / 2 - 2 * torch.pi * torch.arange(len(labels)) / len(labels)
    for place, (label, angle) in enumerate(zip(labels, angles, strict=True)):
        x, y = angle.cos().item(), angle.sin().item()
        sure = (mean[place] / (mean[place] + spread[place]).clamp_min(1e-12)).item()
        color, width = colors[place] if colors else BLUE, (14 * mean[place] / mean.max()).item()
        axes.plot(
            [0, x], [0, y], color=color, linewidth=width, alpha=0.15 + 0.75 * sure, solid_capstyle="butt", zorder=1
        )
        _name(axes, f"{label}\n{mean[place]:.2f}", (x, y))
    _name(axes, center, (0.0, 0.0))
    axes.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")
    return axes


def _name(axes: Axes, text: str, place: tuple[float, float]) -> None:
    axes.annotate(
        text, place, ha="center", va="center", fontsize=9, bbox={"fc": "white", "ec": GREY, "boxstyle": "round"}
    )


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
