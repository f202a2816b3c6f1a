"""Pictures of alignments: prior beside posterior, mean beside credible intervals, and how far schemes agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pyro_attention.analysis import Alignment, GoldAlignment, agreement, credible_intervals

__all__ = ["agreement_heatmap", "interval_heatmaps", "prior_and_posterior", "weights_heatmap"]

PRIOR, POSTERIOR, MEAN, WIDTH = "Reds", "Blues", "Blues", "Purples"
SURE, POSSIBLE = "#111827", "#6b7280"
LONGEST = 18  # letters of a word that are shown; one long word would take the place of the picture


def prior_and_posterior(
    prior: Tensor,
    posterior: Tensor,
    *,
    source: Sequence[str],
    target: Sequence[str],
    gold: GoldAlignment | None = None,
    title: str = "",
    names: tuple[str, str] = ("prior", "posterior"),
) -> Figure:
    """Weights of a sentence pair before and after the target word is seen, on one colour scale from 0 to 1.

    Args:
        prior: Weights ``[M, N]``, or samples ``[S, M, N]`` whose mean is shown.
        posterior: Likewise.
        source: N source words, from left to right.
        target: M target words, from top to bottom.
        gold: Links outlined: solid where sure, dotted where only possible.
        title: Title.
        names: Titles of the two panels.
    """
    panels = [(names[0], _mean(prior), PRIOR), (names[1], _mean(posterior), POSTERIOR)]
    return _panels(panels, source=source, target=target, gold=gold, title=title, shared=True)


def weights_heatmap(
    weights: Tensor,
    *,
    source: Sequence[str],
    target: Sequence[str],
    gold: GoldAlignment | None = None,
    title: str = "",
) -> Figure:
    """Weights of a sentence pair, on a colour scale from 0 to 1; arguments as of :func:`prior_and_posterior`."""
    panels = [("attention weight", _mean(weights), POSTERIOR)]
    return _panels(panels, source=source, target=target, gold=gold, title=title, shared=True)


def interval_heatmaps(
    samples: Tensor,
    *,
    source: Sequence[str],
    target: Sequence[str],
    gold: GoldAlignment | None = None,
    title: str = "",
    level: float = 0.9,
) -> Figure:
    """Mean weights beside the width of their credible intervals, each on its own colour scale.

    Args:
        samples: Posterior samples ``[S, M, N]``.
        source: N source words.
        target: M target words.
        gold: Links outlined: solid where sure, dotted where only possible.
        title: Title.
        level: Mass of the credible intervals.
    """
    intervals = credible_intervals(samples, level=level)
    panels = [
        ("mean weight", intervals.mean, MEAN),
        (f"width of the {level:.0%} credible interval", intervals.width, WIDTH),
    ]
    return _panels(panels, source=source, target=target, gold=gold, title=title, shared=False)


def agreement_heatmap(alignments: Mapping[str, Sequence[Alignment]], *, title: str = "") -> Figure:
    """F1 between the hard alignments of every two schemes, with the numbers.

    Args:
        alignments: Alignments of the same sentences by scheme.
        title: Title.
    """
    table = agreement(alignments)
    names = list(alignments)
    side = 0.62 * len(names)
    figure = Figure(figsize=(side + 2.8, side + 1.6), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(table.numpy(), cmap="Greens", vmin=0, vmax=1)
    for (row, column), value in zip(_cells(table), table.flatten().tolist(), strict=True):
        axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=_ink(value))
    axis.set_xticks(range(len(names)), [_short(name) for name in names], rotation=45, ha="right", fontsize=9)
    axis.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=9)
    axis.spines[:].set_visible(False)
    figure.colorbar(image, ax=axis, shrink=0.8, label="F1 between links")
    figure.suptitle(title, fontsize=11)
    return figure


def _panels(
    panels: Sequence[tuple[str, Tensor, str]],
    *,
    source: Sequence[str],
    target: Sequence[str],
    gold: GoldAlignment | None,
    title: str,
    shared: bool,
) -> Figure:
    """Heat maps side by side."""
    for name, weights, _ in panels:
        if weights.shape != (len(target), len(source)):
            raise ValueError(
                f"'{name}' has weights of shape {tuple(weights.shape)} for {len(target)} target and {len(source)} "
                f"source words, expected [{len(target)}, {len(source)}]; merge pieces into words, drop special tokens"
            )
    cell = max(0.17, min(0.34, 9 / max(len(source), len(target))))
    words = 0.085 * max(min(len(word), LONGEST) for word in (*source, *target))
    width = max(2.2, cell * len(source))
    height = max(0.9, cell * len(target))
    # compressed: cells are square, and "constrained" leaves a gap beside panels that this makes narrow
    figure = Figure(figsize=(len(panels) * (width + words + 1.3), height + words + 1.4), layout="compressed")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    size = 9 if cell > 0.25 else 7.5
    for axis, (name, weights, colours) in zip(axes, panels, strict=True):
        top = 1.0 if shared else max(weights.max().item(), 1e-6)
        image = axis.imshow(weights.numpy(), cmap=colours, vmin=0, vmax=top, aspect="equal", interpolation="nearest")
        axis.set_xticks(range(len(source)), [_short(word) for word in source], rotation=90, fontsize=size)
        # on both panels: a row of 30 words is hard to follow from the other one
        axis.set_yticks(range(len(target)), [_short(word) for word in target], fontsize=size)
        axis.xaxis.tick_top()
        axis.tick_params(length=2)
        axis.set_xlabel(name, fontsize=10)
        _grid(axis, len(source), len(target))
        _outline(axis, gold)
        figure.colorbar(image, ax=axis, shrink=0.7, aspect=25, pad=0.02)
    if gold is not None:
        _legend(figure, gold)
    figure.suptitle(title, fontsize=11)
    # the layout settles in the second drawing only: after one, long words reach into the title
    figure.draw_without_rendering()
    return figure


def _mean(weights: Tensor) -> Tensor:
    """``[M, N]`` on the CPU in float32, averaged over samples if there are any."""
    weights = weights.detach().float().cpu()
    return weights.mean(0) if weights.dim() == 3 else weights


def _grid(axis: Axes, columns: int, rows: int) -> None:
    """Thin lines between the cells, so that one can follow a word across an empty stretch."""
    axis.vlines([x - 0.5 for x in range(1, columns)], -0.5, rows - 0.5, colors="0.9", linewidth=0.5)
    axis.hlines([y - 0.5 for y in range(1, rows)], -0.5, columns - 0.5, colors="0.9", linewidth=0.5)
    axis.spines[:].set_color("0.7")


def _outline(axis: Axes, gold: GoldAlignment | None) -> None:
    """A box around each gold link."""
    if gold is None:
        return
    for links, colour, style in _gold_styles(gold):
        for source, target in links:
            axis.add_patch(
                Rectangle(
                    (source - 0.43, target - 0.43), 0.86, 0.86, fill=False, edgecolor=colour, linestyle=style,
                    linewidth=1.3,
                )
            )  # fmt: skip


def _gold_styles(gold: GoldAlignment) -> list[tuple[Collection[tuple[int, int]], str, str]]:
    return [(gold.sure, SURE, "-"), (gold.possible - gold.sure, POSSIBLE, ":")]


def _legend(figure: Figure, gold: GoldAlignment) -> None:
    names = ("sure gold link", "possible gold link")
    boxes = [
        Rectangle((0, 0), 1, 1, fill=False, edgecolor=colour, linestyle=style, linewidth=1.3, label=name)
        for name, (links, colour, style) in zip(names, _gold_styles(gold), strict=True)
        if links
    ]
    if boxes:
        figure.legend(handles=boxes, loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _short(word: str) -> str:
    """A word that fits, with dollar signs that are no mathematics."""
    word = word if len(word) <= LONGEST else word[: LONGEST - 1] + "…"
    return word.replace("$", r"\$")


def _cells(table: Tensor) -> list[tuple[int, int]]:
    return [(row, column) for row in range(table.size(0)) for column in range(table.size(1))]


def _ink(value: float) -> str:
    return "white" if value > 0.55 else "black"
