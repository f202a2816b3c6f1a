"""Pictures of questions: the photograph, and where the network looked to answer."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.datasets.questions.data import Regions
from experiments.report.figures import overlay, panels, printable
from pyro_attention.analysis import CredibleIntervals, credible_intervals

__all__ = ["looking_figure"]

LEVEL = 0.95


def looking_figure(weights: Tensor, regions: Regions, photograph: int, *, title: str = "") -> Figure:
    """The photograph, the mean weight of every region, and the width of its credible interval.

    Regions that are no cells of a grid, or whose photograph is not there, are bars with their intervals.

    Args:
        weights: Samples ``[S, N]``; of one sample there is no interval.
        regions: The regions of all photographs.
        photograph: Place of the photograph.
        title: Title.
    """
    found = credible_intervals(weights.cpu().unsqueeze(1), level=LEVEL) if len(weights) > 1 else None
    mean = weights.cpu().mean(0)
    if regions.pictures is None or regions.grid is None:
        figure, ((axis,),) = panels(1, 1, size=(6.4, 2.8))
        _bars(axis, mean, found)
    else:
        picture, grid = regions.pictures[photograph], regions.grid
        shown: list[tuple[str, str | None, Tensor | None]] = [("", None, None), ("mean attention", "Blues", mean)]
        if found is not None:
            shown.append((f"width of its {LEVEL:.0%} credible interval", "Purples", (found.high - found.low)[0]))
        figure, (axes,) = panels(1, len(shown), size=(3.2 * len(shown), 3.2))
        for axis, (name, colours, values) in zip(axes, shown, strict=True):
            heat = overlay(axis, picture, grid, values, colours, name=name)
            if values is not None:
                figure.colorbar(heat, ax=axis, shrink=0.75).ax.tick_params(labelsize=7)
    figure.suptitle(printable(title), fontsize=11)
    return figure


def _bars(axis: Axes, mean: Tensor, found: CredibleIntervals | None) -> None:
    places = np.arange(len(mean))
    axis.bar(places, mean.numpy(), color="#1b6ca8", width=0.7)
    if found is not None:
        axis.vlines(places, found.low[0].numpy(), found.high[0].numpy(), color="0.25", linewidth=1)
    axis.set(xlabel="region", ylabel="attention")
