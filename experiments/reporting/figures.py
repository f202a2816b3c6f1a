"""Saving pictures, and the picture that several tasks draw: reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.files import PICTURE_MARK, UserError, drawn_here, write_atomic

__all__ = ["panels", "printable", "reliability_diagram", "save"]

_LINE = "#1b6ca8"
_BINS = 10  # of equal width


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

    Bins with fewer than ten items are left out of the line.

    Args:
        predictions: Name to (probabilities ``[items, classes]``, labels ``[items]``).
    """
    columns = min(4, len(predictions))
    rows = -(-len(predictions) // columns)
    figure = Figure(figsize=(2.9 * columns, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(predictions) :]:
        axis.set_visible(False)
    for axis, (name, (probabilities, labels)) in zip(axes.flat, predictions.items(), strict=False):
        _reliability(axis, probabilities, labels)
        axis.set_title(name, fontsize=10)
    axes[0, 0].legend(fontsize=7, loc="upper left", frameon=False)
    figure.supxlabel("confidence: probability of the predicted class")
    figure.supylabel("accuracy")
    return figure


def _reliability(axis: Axes, probabilities: Tensor, labels: Tensor) -> None:
    confidence, predicted = probabilities.max(-1)
    correct = (predicted == labels).double()
    index = (confidence * _BINS).long().clamp(max=_BINS - 1)
    count = torch.bincount(index, minlength=_BINS).double()
    accuracy = torch.bincount(index, weights=correct, minlength=_BINS) / count
    mean_confidence = torch.bincount(index, weights=confidence.double(), minlength=_BINS) / count
    centres = (np.arange(_BINS) + 0.5) / _BINS
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    axis.bar(centres, (count / count.sum()).numpy(), width=0.9 / _BINS, color="0.85", label="share of items")
    seen = count > 0
    axis.plot(
        mean_confidence[seen].numpy(), accuracy[seen].numpy(), color=_LINE, marker="o", markersize=4, label="accuracy"
    )
    axis.set(xlim=(0, 1), ylim=(0, 1.02))
