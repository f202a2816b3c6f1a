"""A page to look at captions with: the picture's regions that each word was read from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from experiments.captioning.model import Trained
from experiments.datasets.images.region_captions import EncodedCaptions, RegionCaptions
from experiments.files import user_errors, write_atomic
from experiments.report.tables import element
from experiments.sequence.alignments import align_batch
from pyro_attention.analysis import merge_pieces
from pyro_attention.viewer import RegionView, document, fragment

__all__ = ["region_view", "write_page"]

WHAT = (
    "For each word of a caption the page shows at which regions of the picture the network looked, and how sure that "
    "is: what is looked at is clear, the rest is veiled. The prior is what it expected from the picture alone or "
    "before the word, the posterior the weights that it used or holds after the word. Point at a word or a region, or "
    "move to it with the Tab and arrow keys, to read the mean weight of each link, its 90 % credible interval and "
    "samples, where the weights are random."
)


def region_view(
    trained: Trained, data: RegionCaptions, image: int, caption: str, *, num_samples: int = 200
) -> RegionView:
    """View of one caption of the image at a place, one that the network has made, say.

    Raises:
        ValueError: Weights that are negative, as Gaussian ones are.
    """
    captions = [""] * len(data)
    captions[image] = caption
    batch = EncodedCaptions(data.with_captions(captions), trained.vocabulary)[[image]].to(trained.device)
    found = align_batch(trained, batch, num_samples=num_samples)
    # the end token is a word of its own here
    known = trained.vocabulary.words(batch.target_out[0].tolist())
    pieces = [len(caption.split()) if word is None else word for word in known]

    def of_words(weights: Tensor) -> Tensor:
        return merge_pieces(weights.cpu(), source=list(range(weights.size(-1))), target=pieces)

    return RegionView(
        title=f"image {image}", words=[*caption.split(), "(end)"], picture=_shown(data.shown(image)), grid=data.grid,
        posterior=of_words(found.posterior[:, 0]), prior=None if found.prior is None else of_words(found.prior[0]),
    )  # fmt: skip


def write_page(
    trained: Trained, data: RegionCaptions, captions: Sequence[str], images: Sequence[int], path: Path
) -> Path:
    """Write a page on the captions of some images; UserError where it cannot be written or weights are negative."""
    with user_errors(ValueError, OSError):
        views = [region_view(trained, data, image, captions[image]) for image in images]
        page = document(
            f"Captions by {trained.config.guide} attention", element("p", WHAT, **{"class": "lead"}) + fragment(views)
        )
        write_atomic(path, lambda file: file.write(page))
    return path


def _shown(picture: Tensor) -> Tensor:
    """A photograph as it is; ink on paper as shades of grey."""
    return picture if picture.dtype == torch.uint8 else (255 * (1 - picture.clamp(0, 1))).round().to(torch.uint8)
