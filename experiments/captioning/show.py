"""Pictures and pages of captions: where a network looks at each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.captioning.config import ShowConfig
from experiments.captioning.evaluation import describe
from experiments.captioning.train import Trained, load_images, load_trained, read_config
from experiments.datasets.images.captions import open_photograph
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions, own_photograph
from experiments.files import UserError, read_text, user_errors, write_atomic
from experiments.report.figures import panels, printable, save
from experiments.report.report import element
from experiments.sequence.alignments import align_batch, predicts_by_posterior
from pyro_attention.analysis import merge_pieces
from pyro_attention.plots import patches
from pyro_attention.viewer import RegionView, document, fragment

MEAN, WIDTH, PRIOR = "Blues", "Purples", "Reds"
_ACROSS = 7  # words of one line
_PAGE = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how sure that "
    "is: what is looked at is clear, the rest is veiled. The prior is what it expected from the picture alone or "
    "before the word, the posterior the weights that it used or holds after the word. Point at a word or a region, or "
    "move to it with the Tab and arrow keys, to read the mean weight of each link, its 90 % credible interval and "
    "samples, where the weights are random."
)


def show(config: ShowConfig) -> list[Path]:
    """Draw the pictures: their files. The caption of a photograph of one's own is printed, too.

    Raises:
        UserError: No such run or image, or a photograph that cannot be read.
    """
    with user_errors(ValueError, OSError, ImportError):
        # ahead of the data, which take longer to read
        image = None if config.photo is None else open_photograph(config.photo)
        data = load_images(read_config(config.run, device=config.device), train_encoder=image is None)["test"]
        captions = read_text(config.run / "captions.txt", "train the run again").splitlines()
        trained = load_trained(config.run, data.regions.size(2), device=config.device)
        name, places = str(trained.config.guide), config.images
        if image is not None:
            data, name, places = own_photograph(image, data, device=trained.device), f"{name}-photo", (0,)
            captions = describe(trained, data)
            print(captions[0])
        if (most := max(places, default=0)) >= len(data):
            raise UserError(f"there is no test image {most}; expected numbers from 0 to {len(data) - 1}")
        folder = config.out or config.run / "figures"
        views = [view_caption(trained, data, place, captions[place]) for place in places]
        files = [
            save(attention_figure(view, title=f"{name}: {captions[place]}"), folder / f"{name}-{place}-attention.png")
            for place, view in zip(places, views, strict=True)
        ]
        if config.html:
            files.append(folder / "captions.html")
            shown = [region_view(view, f"image {place}") for place, view in zip(places, views, strict=True)]
            write_page(shown, files[-1], title=f"Captions by {trained.config.guide} attention")
    print("\n".join(map(str, files)))
    return files


@dataclass(frozen=True)
class CaptionView:
    """All that is shown of one caption."""

    words: list[str]  # M, and the end
    picture: Tensor  # ink [height, width] or a photograph [3, height, width]
    grid: tuple[int, int]  # rows and columns of the regions
    posterior: Tensor  # samples of the weights of every word, [S, M + 1, N], or their mean
    prior: Tensor | None  # mean weights, [M + 1, N]
    early: bool  # words are predicted by the posterior, which has not seen them

    @property
    def kinds(self) -> list[tuple[str, str, Tensor]]:
        """Name, colours and weights ``[M + 1, N]`` of the panels of every word."""
        names = ("prior", "posterior mean") if self.early else ("prior, before the word", "posterior, after it")
        kinds = [] if self.prior is None else [(names[0], PRIOR, self.prior)]
        kinds.append((names[1], MEAN, self.posterior.mean(0)))
        if self.early and len(self.posterior) > 1:
            low, high = self.posterior.quantile(torch.tensor([0.025, 0.975]), dim=0)
            kinds.append(("width of the 95% credible interval", WIDTH, high - low))
        return kinds


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> CaptionView:
    """Look at one caption of the image at a place, one that the network has made, say."""
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    # the end token is a word of its own here
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]
    found = align_batch(trained, batch, num_samples=num_samples)

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return CaptionView(
        [*caption.split(), "(end)"], data.shown(image), data.grid, of_words(found.posterior[:, 0]),
        None if found.prior is None else of_words(found.prior[0]), predicts_by_posterior(trained),
    )  # fmt: skip


def attention_figure(view: CaptionView, *, title: str = "") -> Figure:
    """The picture, and below it for every word its weights laid over the picture, one kind of weights a row."""
    kinds, across = view.kinds, min(_ACROSS, len(view.words))
    lines = -(-len(view.words) // across)
    high, wide = view.picture.shape[-2:]
    rows = 1 + lines * len(kinds)
    figure, axes = panels(rows, across, size=(1.6 * across + 1, (1.5 * high / wide + 0.25) * rows + 0.5))
    for axis in axes.flat:
        axis.set_axis_off()
    # prior and posterior on one scale, on which uniform weights are no darker than half
    shown = [weights for _, colours, weights in kinds if colours != WIDTH]
    most = max(2 / shown[0].size(-1), *(weights.max().item() for weights in shown))
    patches(view.picture, None, view.grid, axes=axes[0, 0]).set_title("image", fontsize=10, pad=3)
    axes[0, 0].set_axis_on()
    for kind, (label, colours, weights) in enumerate(kinds):
        own = axes[1 + kind :: len(kinds)].reshape(-1)
        top = weights.max().item() if colours == WIDTH else most
        for axis, word, at in zip(own, view.words, weights, strict=False):
            axis.set_axis_on()
            patches(view.picture, at, view.grid, top=top, cmap=colours, axes=axis)
            axis.set_title("" if kind else printable(word, 18), fontsize=10, pad=3)
        bar = figure.colorbar(own[0].images[0], ax=list(own), shrink=0.8, aspect=30)
        bar.ax.tick_params(labelsize=7)
        bar.set_label(label, fontsize=8)
    figure.suptitle(printable(title), fontsize=11)
    return figure


def region_view(view: CaptionView, title: str) -> RegionView:
    """The caption as the page shows it; ValueError where weights are negative, as Gaussian ones are."""
    picture = view.picture
    if picture.dtype != torch.uint8:  # ink on paper, as shades of grey
        picture = (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)
    return RegionView(
        title=title, words=view.words, picture=picture, grid=view.grid, posterior=view.posterior, prior=view.prior
    )


def write_page(views: Sequence[RegionView], path: Path, *, title: str) -> None:
    """Write a page on some captions."""
    page = document(title, element("p", _PAGE, **{"class": "lead"}) + fragment(views))
    write_atomic(path, lambda file: file.write(page))
