"""Pictures of captions: where the attention looks at each word, and how sure each word is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from experiments.captioning.model import Trained
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.reporting.figures import overlay, printable, save
from experiments.reporting.report import Part
from experiments.sequence.alignments import align_batch, predicts_by_posterior
from experiments.sequence.uncertainty import word_uncertainty
from pyro_attention.analysis import merge_pieces

__all__ = ["CaptionView", "attention_figure", "caption_sections", "uncertainty_figure", "view_caption"]

MEAN, DEVIATION, PRIOR = "Blues", "Purples", "Reds"
WORD, ATTENTION = "#9ca3af", "#1b6ca8"
_COLUMNS = 7  # panels side by side
_PANEL, _STEP, _TITLE, _LEFT, _TOP = 1.3, 1.38, 0.2, 0.1, 0.45  # inches


@dataclass(frozen=True)
class CaptionView:
    """All that the pictures show of one caption.

    Attributes:
        words: The words, M, and the end.
        picture: What is looked at, as :class:`RegionCaptions` has it.
        grid: Rows and columns of the regions.
        before: Mean weights of the contextual prior ``[N]``, the same for all words; None where there is none.
        rows: Name, colours and weights ``[M + 1, N]`` of the rows of panels.
        word: Entropy of each word given the attention, ``[M + 1]``.
        attention: Mutual information of each word and the attention, ``[M + 1]``.
    """

    words: list[str]
    picture: Tensor
    grid: tuple[int, int]
    before: Tensor | None
    rows: list[tuple[str, str, Tensor]]
    word: Tensor
    attention: Tensor


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> CaptionView:
    """Look at one caption of the image at a place, one that the network has made, say."""
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    found = align_batch(trained, batch, num_samples=num_samples)
    doubt = word_uncertainty(trained, batch, num_samples=num_samples)
    # the end token is a word of its own here
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]
    regions = list(range(data.regions.size(1)))

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=regions, target=pieces)

    def sums(values: Tensor) -> Tensor:
        return torch.zeros(pieces[-1] + 1).index_add(0, torch.tensor(pieces), values[0].cpu())

    posterior, before = of_words(found.posterior[:, 0]), None
    rows = [("posterior mean", MEAN, posterior.mean(0))]
    if predicts_by_posterior(trained):
        before = None if found.prior is None else of_words(found.prior[0])[0]
        if len(posterior) > 1:
            rows.append(("posterior standard deviation", DEVIATION, posterior.std(0)))
    elif found.prior is not None:
        rows = [("prior, before the word", PRIOR, of_words(found.prior[0])), ("posterior, after it", MEAN, rows[0][2])]
    words = [*caption.split(), "(end)"]
    return CaptionView(words, data.pictures[image], data.grid, before, rows, sums(doubt.word), sums(doubt.attention))


def attention_figure(view: CaptionView, *, title: str = "") -> Figure:
    """The image, the contextual prior, and the attention at every word, laid over the image."""
    first = [("image", None, None)] if view.before is None else [("image", None, None), ("prior", PRIOR, view.before)]
    kinds = max(len(view.rows), len(first))
    across = min(_COLUMNS, len(view.words) + 1)
    lines = -(-(len(view.words) + 1) // across) * kinds
    # in inches: every panel has its place, and long words take none of it
    width, height = _LEFT + (across + 0.45) * _STEP, _TOP + lines * (_STEP + _TITLE) + 0.1
    figure = Figure(figsize=(width, height))

    def panel(line: int, column: float, wide: float = _PANEL) -> Axes:
        left, bottom = _LEFT + column * _STEP, height - _TOP - line * (_STEP + _TITLE) - _TITLE - _PANEL
        return figure.add_axes((left / width, bottom / height, wide / width, _PANEL / height))

    for line, (name, colours, weights) in enumerate(first):
        overlay(panel(line, 0), view.picture, view.grid, weights, colours, name=name)
    for row, (label, colours, weights) in enumerate(view.rows):
        top = max(weights.max().item(), 1e-6)
        for place, word in enumerate(view.words, 1):
            line, shown = place // across * kinds + row, printable(word, 18) if row == 0 else ""
            axis, seen = panel(line, place % across), weights[place - 1]
            heat = overlay(axis, view.picture, view.grid, seen, colours, top=top, name=shown)
            if place == 1 or place % across == 0:  # once a line
                bar = figure.colorbar(heat, cax=panel(line, across + 0.02, 0.1))
                bar.set_label(label, fontsize=8)
                bar.ax.tick_params(labelsize=7)
    figure.suptitle(printable(title), fontsize=11, y=1 - 0.12 / height, va="top")
    return figure


def uncertainty_figure(view: CaptionView, *, title: str = "") -> Figure:
    """Entropy of every word, split into doubt about the word and doubt about where to look."""
    places = np.arange(len(view.words))
    figure = Figure(figsize=(max(5.0, 0.75 * len(view.words) + 1.5), 2.9), layout="constrained")
    axis = figure.subplots()
    axis.bar(places, view.word.numpy(), color=WORD, width=0.65, label="word: expected entropy given the attention")
    axis.bar(
        places, view.attention.numpy(), bottom=view.word.numpy(), color=ATTENTION, width=0.65,
        label="attention: mutual information",
    )  # fmt: skip
    top = (view.word + view.attention).max().item()
    slant = 0 if max(map(len, view.words)) <= 8 else 30
    names = [printable(word, 18) for word in view.words]
    axis.set_xticks(places, names, fontsize=10, rotation=slant, ha="right" if slant else "center")
    axis.set(ylabel="entropy of the word (nats)", ylim=(0, 1.35 * max(top, 0.05)))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, loc="upper right")
    figure.suptitle(printable(title), fontsize=11)
    return figure


def caption_sections(
    trained: Trained, data: RegionCaptions, captions: Sequence[str], places: Sequence[int], folder: Path, *, name: str
) -> list[Part]:
    """Both pictures of the captions of some images, saved in a folder."""
    parts = []
    for image in places:
        view = view_caption(trained, data, image, captions[image])
        for kind, draw in (("attention", attention_figure), ("uncertainty", uncertainty_figure)):
            path = save(draw(view, title=f"{name}: {captions[image]}"), folder / f"{name}-{image}-{kind}.png")
            parts.append(Part(f"{name}, image {image}: {kind}", captions[image], picture=path, page=False))
    return parts
