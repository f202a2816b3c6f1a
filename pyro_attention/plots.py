"""Pictures of attention with uncertainty, on matplotlib: every function draws into one Axes and returns it.

Install ``pyro_attention[plots]``. Without ``axes`` a picture gets a figure of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.analysis import credible_intervals

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["intervals", "patches", "reliability"]

BLUE, GREY = "#1b6ca8", "0.6"
_ROUNDING = 1e-4  # by which a mean of probabilities may exceed 1


def reliability(
    confidence: Tensor, right: Tensor, *, bins: int = 10, legend: bool = True, axes: Axes | None = None
) -> Axes:
    """Plot the share of what is right against its probability; on the diagonal probabilities can be believed.

    Args:
        confidence: Probabilities ``[items]``.
        right: Whether each item is right, ``[items]``.
        bins: Number of bins of equal width; gray bars show the share of the items in each, and the legend their number.
        legend: Whether to draw the legend; without it the labels stay for one of your own.
        axes: Where to draw.

    Raises:
        ValueError: Other shapes, or confidences outside of [0, 1].

    Example:
        >>> confidence = torch.rand(1000)
        >>> axes = reliability(confidence, torch.rand(1000) < confidence)
        >>> [text.get_text() for text in axes.get_legend().get_texts()]
        ['as it should be', 'share that is right', 'share of the 1000 items']
    """
    possible = (confidence >= 0) & (confidence < 1 + _ROUNDING)
    if confidence.dim() != 1 or confidence.shape != right.shape or not possible.all():
        shapes = f"{tuple(confidence.shape)} and {tuple(right.shape)}"
        raise ValueError(
            f"confidence and right have shapes {shapes}, expected [items] both, and probabilities in [0, 1]"
        )
    axes = _axes(axes)
    bin_index = (confidence * bins).long().clamp(max=bins - 1)
    count, mean, share = (
        confidence.new_zeros(bins, dtype=torch.float64).index_add_(0, bin_index, amount.double())
        for amount in (torch.ones_like(confidence), confidence, right)
    )
    filled = count > 0
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle="--", label="as it should be")
    centers = [(index + 0.5) / bins for index in range(bins)]
    line = _array((mean / count)[filled]), _array((share / count)[filled])
    axes.plot(*line, color=BLUE, marker="o", markersize=4, label="share that is right", clip_on=False)
    number = f"share of the {len(confidence)} items"
    axes.bar(centers, _array(count / count.sum()), width=0.9 / bins, color="0.85", label=number, zorder=0)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability", ylabel="share that is right")
    if legend:
        axes.legend(fontsize=8, loc="upper left", frameon=False)
    return axes


def intervals(
    samples: Tensor, labels: Sequence[str], *, level: float = 0.9, color: str = BLUE, axes: Axes | None = None
) -> Axes:
    """Plot the mean weights of one row of attention as bars, with their credible intervals.

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
    axes, summary = _axes(axes), credible_intervals(samples.unsqueeze(1), level=level)
    places = range(samples.size(1))
    axes.bar(places, _array(summary.mean[0]), color=color, alpha=0.55)
    axes.vlines(places, _array(summary.low[0]), _array(summary.high[0]), color="black")
    axes.set_xticks(places, labels, rotation=60 if max(map(len, labels)) > 2 else 0)
    axes.set(ylim=(0, 1), ylabel=f"weight, {100 * level:.0f} % interval")
    return axes


def patches(
    picture: Tensor, weights: Tensor | None, grid: tuple[int, int], *, cmap: str = "viridis", axes: Axes | None = None
) -> Axes:
    """Draw a picture with the weights of its patches, or another quantity, as colors below its ink.

    Args:
        picture: ``[height, width]``, 0 is paper and 1 is ink, or a photograph ``[3, height, width]`` from 0 to 255.
        weights: Of all patches, row by row, ``[rows * columns]``: mean weights, or widths of their intervals; None for
            the picture alone.
        grid: Rows and columns.
        cmap: Color map, whose last color is that of the largest weight; its scale is ``axes.images[0]``.
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
    axes.imshow(_array(weights.reshape(grid)), cmap=cmap, vmin=0, extent=extent, interpolation=smooth)
    # black that is transparent where the picture is light
    layer = ink.new_zeros(*ink.shape, 4)
    layer[..., 3] = ink * (0.75 if photograph else 1)
    axes.imshow(_array(layer), extent=extent)
    return axes


def _array(tensor: Tensor) -> NDArray[np.generic]:
    return as_float(tensor.detach()).cpu().numpy()  # NumPy has no bfloat16


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]
