"""Pictures of predictions and of graph attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor

from experiments.files import PICTURE_MARK, UserError, drawn_here, write_atomic

__all__ = ["neighbourhood", "reliability_diagram", "save"]

SAME, OTHER, SELF = "#1b6ca8", "#d1495b", "#6b7280"
MIN_ITEMS = 10  # the accuracy of fewer says little


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, atomically; the file says that it was drawn here, and only such files are written over.

    Raises:
        UserError: There is another file of that name, or the file cannot be written.
    """
    if (path.exists() or path.is_symlink()) and not drawn_here(path):
        raise UserError(f"{path} exists and was not drawn by these scripts; move it, or choose another folder")
    mark = {"Software": PICTURE_MARK, "Title": path.name}
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=150, bbox_inches="tight", metadata=mark))
    return path


def reliability_diagram(predictions: Mapping[str, tuple[Tensor, Tensor]], *, bins: int = 10) -> Figure:
    """Accuracy against confidence, one panel a row of the comparison; on the diagonal confidence is honest.

    Bins with fewer than ten items are left out of the line.

    Args:
        predictions: Name to (probabilities ``[items, classes]``, labels ``[items]``).
        bins: Number of confidence bins of equal width.
    """
    columns = min(4, len(predictions))
    rows = -(-len(predictions) // columns)
    figure = Figure(figsize=(2.9 * columns, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(predictions) :]:
        axis.set_visible(False)
    for axis, (name, (probabilities, labels)) in zip(axes.flat, predictions.items(), strict=False):
        _reliability(axis, probabilities, labels, bins)
        axis.set_title(name, fontsize=10)
    axes[0, 0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel("confidence: probability of the predicted class")
    figure.supylabel("accuracy")
    return figure


def _reliability(axis: Axes, probabilities: Tensor, labels: Tensor, bins: int) -> None:
    confidence, predicted = probabilities.max(-1)
    correct = (predicted == labels).double()
    index = (confidence * bins).long().clamp(max=bins - 1)
    count = torch.bincount(index, minlength=bins).double()
    accuracy = torch.bincount(index, weights=correct, minlength=bins) / count
    mean_confidence = torch.bincount(index, weights=confidence.double(), minlength=bins) / count
    centres = (np.arange(bins) + 0.5) / bins
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    axis.bar(centres, (count / count.sum()).numpy(), width=0.9 / bins, color="0.85", label="share of items")
    seen = count > 0
    axis.plot(
        mean_confidence[seen].numpy(), accuracy[seen].numpy(), color=SAME, marker="o", markersize=4, label="accuracy"
    )
    axis.set(xlim=(0, 1), ylim=(0, 1.02))


def neighbourhood(
    samples: Tensor,
    *,
    node: int,
    neighbours: Sequence[int],
    images: Tensor | None,
    labels: Tensor,
    title: str,
    level: float = 0.9,
) -> Figure:
    """A node and whom it attends to: mean weight and credible interval of every edge.

    Args:
        samples: Attention weights of the node's in-edges, ``[S, edges]``.
        node: The node.
        neighbours: Source of each edge; the node itself for its self loop.
        images: Pictures of all nodes ``[N, height, width]``; numbers are shown without.
        labels: Class of all nodes ``[N]``.
        title: Title.
        level: Mass of the credible interval.
    """
    mean = samples.mean(0)
    order = mean.argsort(descending=True)
    mean, neighbours = mean[order], [neighbours[i] for i in order]
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=samples.dtype)
    low, high = samples[:, order].quantile(tails, dim=0)
    colours = [_colour(n, node, labels) for n in neighbours]
    figure = Figure(figsize=(11, 0.6 + 0.42 * max(10, len(neighbours))), layout="constrained")
    wheel, bars = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _wheel(wheel, mean, neighbours, colours, node, images)
    rows = np.arange(len(neighbours))
    bars.barh(rows, mean.numpy(), color=colours, alpha=0.35, height=0.7)
    errors = torch.stack([mean - low, high - mean]).clamp(min=0)
    bars.errorbar(
        mean.numpy(), rows, xerr=errors.numpy(), fmt="o", markersize=3, color="0.15", capsize=2, linewidth=1.2
    )
    bars.axvline(1 / len(neighbours), color="0.5", linestyle=":", linewidth=1)
    bars.annotate("uniform", (1 / len(neighbours), -0.9), fontsize=8, color="0.4", ha="center", annotation_clip=False)
    names = ["itself" if n == node else f"{labels[n].item()}" for n in neighbours]
    bars.set_yticks(rows, names, fontsize=9)
    bars.invert_yaxis()
    bars.set(xlabel=f"attention weight: mean and {level:.0%} credible interval", ylabel="class of the neighbour")
    bars.spines[["top", "right"]].set_visible(False)
    for label, colour in (("same class", SAME), ("other class", OTHER), ("itself", SELF)):
        wheel.plot([], [], color=colour, linewidth=6, alpha=0.5, label=label)
    wheel.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3)
    figure.suptitle(title, fontsize=11)
    return figure


def _colour(neighbour: int, node: int, labels: Tensor) -> str:
    if neighbour == node:
        return SELF
    return SAME if labels[neighbour] == labels[node] else OTHER


def _wheel(
    axis: Axes, mean: Tensor, neighbours: Sequence[int], colours: Sequence[str], node: int, images: Tensor | None
) -> None:
    """The node in the middle, its neighbours around it, lines as thick as the mean weights."""
    around = [i for i, n in enumerate(neighbours) if n != node]
    scale = 14 / mean.max().item()
    for place, i in enumerate(around):
        angle = np.pi / 2 - 2 * np.pi * place / len(around)
        x, y = np.cos(angle), np.sin(angle)
        axis.plot([0, x], [0, y], color=colours[i], linewidth=scale * mean[i].item(), alpha=0.45, zorder=1)
        _picture(axis, neighbours[i], (x, y), images, colours[i], zoom=3.2)
    _picture(axis, node, (0.0, 0.0), images, SELF, zoom=4.6)
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axis.axis("off")


def _picture(
    axis: Axes, node: int, place: tuple[float, float], images: Tensor | None, colour: str, zoom: float
) -> None:
    if images is None:
        axis.annotate(str(node), place, ha="center", va="center", fontsize=8, bbox={"fc": "white", "ec": colour})
        return
    picture = OffsetImage(images[node].numpy(), cmap=matplotlib.colormaps["gray_r"], zoom=zoom)
    axis.add_artist(AnnotationBbox(picture, place, pad=0.15, bboxprops={"edgecolor": colour, "linewidth": 2}))
