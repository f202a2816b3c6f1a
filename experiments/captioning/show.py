"""A page of captions: where a network looks at each word."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.captioning.config import ShowConfig
from experiments.captioning.evaluation import describe
from experiments.captioning.train import Trained, load_images, load_trained, read_config
from experiments.datasets.images.captions import open_photograph
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions, own_photograph
from experiments.files import UserError, read_text, user_errors, write_atomic
from experiments.report.tables import element
from experiments.sequence.alignments import align_batch
from pyro_attention.analysis import merge_pieces
from pyro_attention.viewer import RegionView, document, fragment

_PAGE = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how sure that "
    "is: what is looked at is clear, the rest is veiled. The prior is what it expected from the picture alone or "
    "before the word, the posterior the weights that it used or holds after the word. Point at a word or a region, or "
    "move to it with the Tab and arrow keys, to read the mean weight of each link, its 90 % credible interval and "
    "samples, where the weights are random."
)


def show(config: ShowConfig) -> Path:
    """Write the page: its file. The caption of a photograph of one's own is printed, too.

    Raises:
        UserError: No such run or image, a photograph that cannot be read, or weights that are negative.
    """
    with user_errors(ValueError, OSError, ImportError):
        # ahead of the data, which take longer to read
        image = None if config.photo is None else open_photograph(config.photo)
        data = load_images(read_config(config.run, device=config.device))["test"]
        captions = read_text(config.run / "captions.txt", "train the run again").splitlines()
        trained = load_trained(config.run, data.regions.size(2), device=config.device)
        places = config.images
        if image is not None:
            data, places = own_photograph(image, data, device=trained.device), (0,)
            captions = describe(trained, data)
            print(captions[0])
        if (most := max(places, default=0)) >= len(data):
            raise UserError(f"there is no test image {most}; expected numbers from 0 to {len(data) - 1}")
        views = [view_caption(trained, data, place, captions[place]) for place in places]
    path = config.out or config.run / "figures" / "captions.html"
    lead = element("p", _PAGE, **{"class": "lead"})
    page = document(f"Captions by {trained.config.guide} attention", lead + fragment(views))
    write_atomic(path, lambda file: file.write(page))
    print(path)
    return path


def view_caption(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> RegionView:
    """One caption of the image at a place, such as one that the network has made, with its end as a word of its own.

    Raises:
        ValueError: Weights are negative, as Gaussian ones are.
    """
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]
    found, picture = align_batch(trained, batch, num_samples=num_samples), data.shown(image)
    if picture.dtype != torch.uint8:  # ink on paper, as shades of grey
        picture = (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return RegionView(
        title=f"image {image}", words=[*caption.split(), "(end)"], picture=picture, grid=data.grid,
        posterior=of_words(found.posterior[:, 0]), prior=None if found.prior is None else of_words(found.prior[0]),
    )  # fmt: skip
