"""Photographs with captions, the words of a caption, and checking that what a list names is there."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from experiments.datasets.images.image_files import SKIP_BAD, ImageFile
from pyro_attention.registry import Registry

__all__ = ["CAPTIONS", "CaptionedImages", "ListedImage", "caption_words", "complete"]

_WORDS = re.compile(r"\w+(?:-\w+)*|'\w+")


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Photographs, each with its captions; the photographs are opened when they are wanted.

    Args:
        images: the photographs.
        captions: captions of every photograph, as they were written, with single blanks.
        name: name of the data set.
        split: name of the split.
        skipped: number of captions and images that were left out, by the reason.

    Raises:
        ValueError: the lists do not go together, or an image has no caption.
    """

    images: list[ImageFile]
    captions: list[list[str]]
    name: str
    split: str
    skipped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.images or len(self.images) != len(self.captions):
            raise ValueError(
                f"{self.name}, {self.split}: {len(self.images)} images and captions of {len(self.captions)}; expected "
                f"at least one image, and captions of each"
            )
        for image, captions in zip(self.images, self.captions, strict=True):
            if not captions:
                raise ValueError(f"{image}: no captions; expected at least one of every image")

    def __len__(self) -> int:
        return len(self.images)

    def without(self, places: Iterable[int], reason: str) -> "CaptionedImages":
        """Return the data without some images, which are counted as skipped."""
        bad = set(places)
        kept = [place for place in range(len(self)) if place not in bad]
        return replace(
            self,
            images=[self.images[place] for place in kept],
            captions=[self.captions[place] for place in kept],
            skipped=dict(Counter(self.skipped) + Counter({reason: len(bad)})),
        )


# From the folder of the data sets, the name of a split, and whether bad images are left out, to the images.
CAPTIONS: Registry[Callable[[Path, str, bool], CaptionedImages]] = Registry("data set of captioned images")


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption: in small letters, without punctuation.

    Words are runs of letters and digits, also with hyphens inside; what follows an apostrophe is a word of its own.
    Nearly what the evaluation of COCO does (the Penn Treebank's rules without punctuation): "n't" differs.
    """
    return _WORDS.findall(caption.lower().replace("’", "'"))


class ListedImage(NamedTuple):
    """What a list of images says of one of them: where it is listed; None for an image that is missing."""

    place: str
    image: ImageFile | None
    captions: list[str]


def complete(
    rows: Sequence[ListedImage], *, expected: str, name: str, split: str, skipped: Counter[str], skip: bool
) -> CaptionedImages:
    """Check that every listed image is there and has captions, which are `expected` to be something.

    With `skip`, those that have not are left out and counted in `skipped`, in place.

    Raises:
        FileNotFoundError: an image is missing.
        ValueError: an image has no caption, or none is left.
    """
    images, texts = [], []
    for place, image, captions in rows:
        if image is not None and captions:
            images.append(image)
            texts.append(captions)
        elif skip:
            skipped["no image" if image is None else "no caption"] += 1
        elif image is None:
            raise FileNotFoundError(f"{place} is missing; expected a photograph of this name. Add it, or {SKIP_BAD}.")
        else:
            raise ValueError(f"{place} has no caption; expected {expected}. Add one, or {SKIP_BAD}.")
    return CaptionedImages(images, texts, name, split, dict(skipped))
