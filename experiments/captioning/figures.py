"""Pictures and pages of captions: where the attention looks at each word, and how sure each word is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from experiments.captioning.model import Trained
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.datasets.text.batches import Batch
from experiments.files import user_errors, write_atomic
from experiments.report.figures import overlay, printable, save
from experiments.report.report import Part
from experiments.report.tables import element
from experiments.sequence.alignments import BatchAlignment, align_batch, predicts_by_posterior
from experiments.sequence.uncertainty import word_uncertainty
from pyro_attention.analysis import merge_pieces
from pyro_attention.viewer import RegionView, document, fragment

__all__ = [
    "CaptionView",
    "attention_figure",
    "caption_sections",
    "region_view",
    "uncertainty_figure",
    "view_caption",
    "write_page",
]

MEAN, WIDTH, PRIOR = "Blues", "Purples", "Reds"
WORD, ATTENTION = "#9ca3af", "#1b6ca8"
_LEVEL = 0.95  # of credible intervals
_DPI = 150  # dots of a saved picture in an inch
_LEAST, _WIDEST = 1.3, 14.0  # inches: of a panel's longer side, and of the panels of one line
_GAP, _BETWEEN, _WORD, _HEAD, _FOOT = 0.08, 0.3, 0.24, 0.4, 0.75  # inches

_PAGE = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how sure that "
    "is: what is looked at is clear, the rest is veiled. The prior is what it expected from the picture alone or "
    "before the word, the posterior the weights that it used or holds after the word. Point at a word or a region, or "
    "move to it with the Tab and arrow keys, to read the mean weight of each link, its 90 % credible interval and "
    "samples, where the weights are random."
)


@dataclass(frozen=True)
class CaptionView:
    """All that the pictures show of one caption.

    Attributes:
        words: The words, M, and the end.
        picture: What is looked at: ink ``[height, width]`` or a photograph ``[3, height, width]``.
        grid: Rows and columns of the regions.
        kinds: Name, colours and weights ``[M + 1, N]`` of the panels of every word.
        word: Entropy of each word given the attention, ``[M + 1]``.
        attention: Mutual information of each word and the attention, ``[M + 1]``.
    """

    words: list[str]
    picture: Tensor
    grid: tuple[int, int]
    kinds: list[tuple[str, str, Tensor]]
    word: Tensor
    attention: Tensor


def _looked(
    trained: Trained, data: RegionCaptions, image: int, caption: str, num_samples: int
) -> tuple[Batch, list[int], BatchAlignment, Callable[[Tensor], Tensor]]:
    """A caption as a batch, the word of each piece, its alignment, and how weights of pieces become those of words."""
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    # the end token is a word of its own here
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return batch, pieces, align_batch(trained, batch, num_samples=num_samples), of_words


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> CaptionView:
    """Look at one caption of the image at a place, one that the network has made, say."""
    batch, pieces, found, of_words = _looked(trained, data, image, caption, num_samples)
    doubt = word_uncertainty(trained, batch, num_samples=num_samples)

    def sums(values: Tensor) -> Tensor:
        return torch.zeros(pieces[-1] + 1).index_add(0, torch.tensor(pieces), values[0].cpu())

    posterior = of_words(found.posterior[:, 0])
    early = predicts_by_posterior(trained)
    names = ("prior", "posterior mean") if early else ("prior, before the word", "posterior, after it")
    kinds = [] if found.prior is None else [(names[0], PRIOR, of_words(found.prior[0]))]
    kinds.append((names[1], MEAN, posterior.mean(0)))
    if early and len(posterior) > 1:
        low, high = posterior.quantile(torch.tensor([(1 - _LEVEL) / 2, (1 + _LEVEL) / 2]), dim=0)
        kinds.append((f"width of the {_LEVEL:.0%} credible interval", WIDTH, high - low))
    return CaptionView(
        [*caption.split(), "(end)"], data.shown(image), data.grid, kinds, sums(doubt.word), sums(doubt.attention)
    )


def attention_figure(view: CaptionView, *, title: str = "") -> Figure:
    """The picture, and for every word panels side by side: its weights laid over the picture, in the picture's size."""
    pixels = torch.tensor(view.picture.shape[-2:])
    high, wide = (pixels / pixels.max() * max(_LEAST, pixels.max().item() / _DPI)).tolist()
    group = len(view.kinds) * (wide + _GAP) + _BETWEEN
    across = max(1, min(len(view.words), int(_WIDEST / group)))
    lines = 1 + -(-len(view.words) // across)
    width, height = max(6.0, across * group), _HEAD + lines * (high + _WORD) + _FOOT
    figure = Figure(figsize=(width, height))

    def panel(line: int, left: float) -> Axes:
        bottom = height - _HEAD - line * (high + _WORD) - _WORD - high
        return figure.add_axes((left / width, bottom / height, wide / width, high / height))

    # prior and posterior on one scale, on which uniform weights are no darker than half
    shown = [weights for _, colours, weights in view.kinds if colours != WIDTH]
    most = max(2 / shown[0].size(-1), *(weights.max().item() for weights in shown))
    overlay(panel(0, _BETWEEN / 2), view.picture, view.grid, None, None, name="image")
    for kind, (label, colours, weights) in enumerate(view.kinds):
        for place, word in enumerate(view.words):
            left = place % across * group + _BETWEEN / 2 + kind * (wide + _GAP)
            name, top = printable(word, 18) if kind == 0 else "", weights.max().item() if colours == WIDTH else most
            axis = panel(1 + place // across, left)
            heat = overlay(axis, view.picture, view.grid, weights[place], colours, top=top, name=name)
        bar = (width / len(view.kinds) - _BETWEEN) / width
        left, bottom = kind / len(view.kinds) + _BETWEEN / 2 / width, 0.5 * _FOOT / height
        scale = figure.add_axes((left, bottom, bar, 0.1 / height))
        figure.colorbar(heat, cax=scale, orientation="horizontal", ticks=MaxNLocator(4)).ax.tick_params(labelsize=7)
        figure.text(left, bottom + 0.14 / height, label, fontsize=8)
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
            parts.append(Part(f"{name}, image {image}: {kind}", captions[image], picture=path, published=False))
    return parts


def region_view(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> RegionView:
    """View of one caption of the image at a place, one that the network has made, say.

    Raises:
        ValueError: Weights that are negative, as Gaussian ones are.
    """
    _, _, found, of_words = _looked(trained, data, image, caption, num_samples)
    picture = data.shown(image)
    if picture.dtype != torch.uint8:  # ink on paper, as shades of grey
        picture = (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)
    return RegionView(
        title=f"image {image}", words=[*caption.split(), "(end)"], picture=picture, grid=data.grid,
        posterior=of_words(found.posterior[:, 0]), prior=None if found.prior is None else of_words(found.prior[0]),
    )  # fmt: skip


def write_page(
    trained: Trained, data: RegionCaptions, captions: Sequence[str], images: Sequence[int], path: Path
) -> Path:
    """Write a page on the captions of some images; UserError where it cannot be written or weights are negative."""
    with user_errors(ValueError, OSError):
        views = [region_view(trained, data, image, captions[image]) for image in images]
        page = document(
            f"Captions by {trained.config.guide} attention", element("p", _PAGE, **{"class": "lead"}) + fragment(views)
        )
        write_atomic(path, lambda file: file.write(page))
    return path
