"""Alignments to look at: pictures, the page of a viewer, and what a comparison shows of its schemes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from torch import Tensor

from experiments.files import write_atomic
from experiments.nmt.alignments import PairAlignment, aligned_pairs
from experiments.nmt.config import TranslationConfig
from experiments.nmt.data import load_text
from experiments.nmt.model import load_trained
from experiments.report.figures import printable, save
from experiments.report.report import Part
from experiments.report.tables import element
from pyro_attention.analysis import Alignment, GoldAlignment, agreement, credible_intervals
from pyro_attention.viewer import AlignmentView, document, fragment

MOST_PAIRS = 200  # on one page
_LEVEL = 0.9  # mass of the credible intervals
_LONGEST = 18  # letters of a word that are shown; one long word would take the place of the picture
_SHOWN = 50  # sentence pairs whose alignments are compared
_CHOSEN = 8  # of them, that are shown
_SHORT = 5  # words
_SAMPLES = 200


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
    rows, columns = len(pair.target), len(pair.source)
    cell = max(0.17, min(0.34, 9 / max(rows, columns)))
    words = 0.085 * max(min(len(word), _LONGEST) for word in (*pair.source, *pair.target))
    width_of, height = max(2.2, cell * columns), max(0.9, cell * rows)
    # compressed: cells are square, and "constrained" leaves a gap beside panels that this makes narrow
    figure = Figure(figsize=(len(panels) * (width_of + words + 1.3), height + words + 1.4), layout="compressed")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (name, weights, colours, top) in zip(axes, panels, strict=True):
        image = _heatmap(axis, pair, weights, colours, top, size=9 if cell > 0.25 else 7.5)
        axis.set(xlabel=languages[0], ylabel=languages[1])
        axis.set_title(name, fontsize=10)
        top = float(weights.max()) if top is None else top
        ticks = [0, *(round(part * top, 2) for part in (0.05, 0.25, 0.5, 1))] if top > 0.2 else None
        figure.colorbar(image, ax=axis, shrink=0.7, aspect=25, pad=0.02, ticks=ticks)
    if gold is not None:
        _outline(figure, axes, gold)
    figure.suptitle(title, fontsize=11)
    # the layout settles in the second drawing only: after one, long words reach into the title
    figure.draw_without_rendering()
    return figure


def _heatmap(
    axis: Axes, pair: PairAlignment, weights: Tensor, colours: str, top: float | None, *, size: float
) -> AxesImage:
    """Weights ``[M, N]`` in these colours up to a weight, the largest one when None, with the words beside them."""
    shown = weights.detach().float().cpu().numpy()
    norm = PowerNorm(0.5, vmin=0, vmax=max(shown.max(), 1e-6) if top is None else top)
    image = axis.imshow(shown, cmap=colours, norm=norm, aspect="equal", interpolation="nearest")
    columns, rows = ([printable(word, _LONGEST) for word in side] for side in (pair.source, pair.target))
    axis.set_xticks(range(len(columns)), columns, rotation=90, fontsize=size)
    # on both panels: a row of 30 words is hard to follow from the other one
    axis.set_yticks(range(len(rows)), rows, fontsize=size)
    axis.xaxis.tick_top()
    axis.xaxis.set_label_position("top")
    axis.tick_params(length=2)
    # thin lines between the cells, so that one can follow a word across an empty stretch
    axis.vlines([x - 0.5 for x in range(1, len(columns))], -0.5, len(rows) - 0.5, colors="0.9", linewidth=0.5)
    axis.hlines([y - 0.5 for y in range(1, len(rows))], -0.5, len(columns) - 0.5, colors="0.9", linewidth=0.5)
    axis.spines[:].set_color("0.7")
    return image


def _outline(figure: Figure, axes: Iterable[Axes], gold: GoldAlignment) -> None:
    """A box around each gold link, and what the boxes mean."""
    handles = []
    kinds = (("sure", gold.sure, "#111827", "-"), ("possible", gold.possible - gold.sure, "#6b7280", ":"))
    for name, links, colour, style in kinds:
        look: dict[str, Any] = {"fill": False, "edgecolor": colour, "linestyle": style, "linewidth": 1.3}
        for axis in axes:
            for source, target in links:
                axis.add_patch(Rectangle((source - 0.43, target - 0.43), 0.86, 0.86, **look))
        if links:
            handles.append(Rectangle((0, 0), 1, 1, label=f"{name} gold link", **look))
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def alignment_views(
    schemes: Mapping[str, Sequence[PairAlignment]],
    *,
    languages: tuple[str, str],
    gold: Sequence[GoldAlignment] | None = None,
) -> list[AlignmentView]:
    """A view of every sentence pair, with the prior and posterior of each scheme that has one."""
    views = []
    for place, pairs in enumerate(zip(*schemes.values(), strict=True)):
        found = dict(zip(schemes, pairs, strict=True))
        views.append(
            AlignmentView(
                title=f"Pair {place + 1}", source=pairs[0].source, target=pairs[0].target, languages=languages,
                posterior={name: pair.posterior for name, pair in found.items()},
                prior={name: pair.prior for name, pair in found.items() if pair.prior is not None},
                gold=None if gold is None else gold[place],
            )
        )  # fmt: skip
    return views


def _what_is_shown(languages: tuple[str, str]) -> str:
    """What one sees on such a page, in plain words."""
    source, target = languages
    return (
        f"For each word of a translation ({target}): from which words of the sentence ({source}) the network took it, "
        "by the prior, what it expected before it saw the word, and by the posterior, what it holds afterwards (for "
        "Bayesian attention the weights that it used). Point at a word, or move to it with the Tab and arrow keys: the "
        "stronger a colour, the larger the weight. On the right stand its 90 % credible interval and samples, if any."
    )


def write_page(path: Path, views: Sequence[AlignmentView], *, title: str) -> Path:
    """Write the page, one file that needs no other; UserError where it cannot be written."""
    lead = element("p", _what_is_shown(views[0].languages), **{"class": "lead"})
    write_atomic(path, lambda file: file.write(document(title, lead + fragment(views))))
    return path


def differing_places(pairs: Mapping[str, Sequence[PairAlignment]]) -> list[int]:
    """The sentences in whose links the schemes agree least, these first; short ones, which show little, come last."""

    def agreed(place: int) -> tuple[bool, float]:
        links = {row: [found[place].links] for row, found in pairs.items()}
        return len(next(iter(pairs.values()))[place].target) < _SHORT, agreement(links).mean().item()

    return sorted(range(len(next(iter(pairs.values())))), key=agreed)[:_CHOSEN]


def picture_parts(runs: Mapping[str, TranslationConfig], folder: Path) -> list[Part]:
    """The viewer for sentences on which the schemes differ, pictures of the first of them, and how far all agree."""
    text = load_text(next(iter(runs.values())), "test").first(_SHOWN)
    networks = {row: load_trained(Path(str(config.out)), device=config.device) for row, config in runs.items()}
    pairs = {row: aligned_pairs(one, text, num_samples=one.config.num_samples) for row, one in networks.items()}
    chosen = text.chosen(differing_places(pairs))
    schemes = {row: aligned_pairs(one, chosen, num_samples=_SAMPLES) for row, one in networks.items()}
    views = alignment_views(schemes, languages=text.languages, gold=chosen.gold)
    words = (
        f"Of the first {_SHOWN} test sentences these are the {len(chosen)} on which the schemes agree least. "
        f"{_what_is_shown(text.languages)}"
    )
    parts = [Part("Where do the schemes differ?", words, views=views, terminal=False, published=False)]
    for row in ("categorical_enum", "marginal", "dirichlet", "weibull"):
        if row in schemes:
            pair, gold = schemes[row][0], None if chosen.gold is None else chosen.gold[0]
            figure = pair_figure(pair, gold=gold, title=f"{row}: a sentence", languages=text.languages)
            parts.append(Part(f"Alignment: {row}", picture=save(figure, folder / f"{row}.png"), published=False))
    links: dict[str, Sequence[Alignment]] = {row: [pair.links for pair in found] for row, found in pairs.items()}
    if text.alignments is not None:
        links["gold"] = text.alignments
    table = [[f"{value:.2f}" for value in row] for row in agreement(links).tolist()]
    rows = [{"scheme": name} | dict(zip(links, row, strict=True)) for name, row in zip(links, table, strict=True)]
    words = (
        f"F1 between the links of every two schemes on {len(text)} test sentences, each target word linked to its most "
        "probable source word."
    )
    return [*parts, Part("Do the schemes agree?", words, rows, terminal=False, published=False)]
