"""Pictures of alignments: prior beside posterior, mean beside credible intervals, and how far schemes agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.nmt.alignments import PairAlignment
from experiments.report.figures import printable
from pyro_attention.analysis import Alignment, GoldAlignment, agreement, credible_intervals

__all__ = ["agreement_heatmap", "pair_figure"]

_LEVEL = 0.9  # mass of the credible intervals
_LONGEST = 18  # letters of a word that are shown; one long word would take the place of the picture


def pair_figure(
    pair: PairAlignment,
    *,
    gold: GoldAlignment | None = None,
    title: str = "",
    languages: tuple[str, str] = ("source", "target"),
) -> Figure:
    """Mean of samples beside their credible intervals; prior beside an exact posterior; weights alone.

    Gold links are outlined: solid where sure, dotted where only possible. Colours follow the square root of the
    weights, so that the small ones of long sentences can be told apart.
    """
    panels: list[tuple[str, Tensor, str, float | None]]
    if len(pair.posterior) > 1:
        found = credible_intervals(pair.posterior, level=_LEVEL)
        width = f"width of the {_LEVEL:.0%} credible interval"
        panels = [("mean weight", found.mean, "Blues", None), (width, found.width, "Purples", None)]
    elif pair.prior is not None:
        panels = [("prior", pair.prior, "Reds", 1.0), ("posterior", pair.posterior[0], "Blues", 1.0)]
    else:
        panels = [("attention weight", pair.posterior[0], "Blues", 1.0)]
    figure = _heatmaps(panels, pair.source, pair.target, languages)
    if gold is not None:
        _outline(figure, gold, panels=len(panels))
    figure.suptitle(title, fontsize=11)
    # the layout settles in the second drawing only: after one, long words reach into the title
    figure.draw_without_rendering()
    return figure


def agreement_heatmap(alignments: Mapping[str, Sequence[Alignment]], *, title: str = "") -> Figure:
    """F1 between the hard alignments of the same sentences by every two schemes, with the numbers."""
    table = agreement(alignments).numpy()
    names = [printable(name, _LONGEST) for name in alignments]
    side = 0.62 * len(names)
    figure = Figure(figsize=(side + 2.8, side + 1.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(table, cmap="Greens", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(table):
        ink = "white" if value > 0.55 else "black"
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=9)
    axis.set_yticks(range(len(names)), names, fontsize=9)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, shrink=0.8, label="F1 between links")
    figure.suptitle(title, fontsize=11)
    return figure


def _heatmaps(
    panels: Sequence[tuple[str, Tensor, str, float | None]],
    source: Sequence[str],
    target: Sequence[str],
    languages: tuple[str, str],
) -> Figure:
    """Weights ``[M, N]`` side by side: their name, colours, and the top of their scale, the largest when None."""
    rows, columns = len(target), len(source)
    cell = max(0.17, min(0.34, 9 / max(rows, columns)))
    words = 0.085 * max(min(len(word), _LONGEST) for word in (*source, *target))
    width, height = max(2.2, cell * columns), max(0.9, cell * rows)
    # compressed: cells are square, and "constrained" leaves a gap beside panels that this makes narrow
    figure = Figure(figsize=(len(panels) * (width + words + 1.3), height + words + 1.4), layout="compressed")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    size = 9 if cell > 0.25 else 7.5
    for axis, (name, weights, colours, top) in zip(axes, panels, strict=True):
        if weights.shape != (rows, columns):
            raise ValueError(
                f"'{name}' has weights of shape {tuple(weights.shape)} for {rows} target and {columns} source words, "
                f"expected [{rows}, {columns}]; merge pieces into words, drop special tokens"
            )
        shown = weights.detach().float().cpu().numpy()
        top = max(shown.max(), 1e-6) if top is None else top
        image = axis.imshow(
            shown, cmap=colours, norm=PowerNorm(0.5, vmin=0, vmax=top), aspect="equal", interpolation="nearest"
        )
        axis.set_xticks(range(columns), [printable(word, _LONGEST) for word in source], rotation=90, fontsize=size)
        # on both panels: a row of 30 words is hard to follow from the other one
        axis.set_yticks(range(rows), [printable(word, _LONGEST) for word in target], fontsize=size)
        axis.xaxis.tick_top()
        axis.xaxis.set_label_position("top")
        axis.tick_params(length=2)
        axis.set(xlabel=languages[0], ylabel=languages[1])
        axis.set_title(name, fontsize=10)
        # thin lines between the cells, so that one can follow a word across an empty stretch
        axis.vlines([x - 0.5 for x in range(1, columns)], -0.5, rows - 0.5, colors="0.9", linewidth=0.5)
        axis.hlines([y - 0.5 for y in range(1, rows)], -0.5, columns - 0.5, colors="0.9", linewidth=0.5)
        axis.spines[:].set_color("0.7")
        ticks = [0, *(round(part * top, 2) for part in (0.05, 0.25, 0.5, 1))] if top > 0.2 else None
        figure.colorbar(image, ax=axis, shrink=0.7, aspect=25, pad=0.02, ticks=ticks)
    return figure


def _outline(figure: Figure, gold: GoldAlignment, *, panels: int) -> None:
    """A box around each gold link, and what the boxes mean."""
    handles = []
    kinds = (("sure", gold.sure, "#111827", "-"), ("possible", gold.possible - gold.sure, "#6b7280", ":"))
    for name, links, colour, style in kinds:
        look: dict[str, Any] = {"fill": False, "edgecolor": colour, "linestyle": style, "linewidth": 1.3}
        for axis in figure.axes[:panels]:
            for source, target in links:
                axis.add_patch(Rectangle((source - 0.43, target - 0.43), 0.86, 0.86, **look))
        if links:
            handles.append(Rectangle((0, 0), 1, 1, label=f"{name} gold link", **look))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
