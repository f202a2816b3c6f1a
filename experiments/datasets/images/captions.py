"""Photographs and their captions, by the name of their data set."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.images.caption_data import CAPTIONS, CaptionedImages
from experiments.datasets.places import check_split, data_folder

__all__ = ["CAPTIONS", "CaptionedImages", "load_captions"]

import_readers("experiments.datasets.images.readers")


def load_captions(name: str, split: str, *, data_root: Path | str | None = None, skip: bool = False) -> CaptionedImages:
    """Load one split of a data set of captioned photographs; no photograph is opened yet.

    The module of a data set in `experiments.datasets.images.readers` tells what it holds and where its files lie.

    With `skip`, lines that are no caption, images without a caption and captions without an image are left out, and
    counted in `skipped`.

    Raises:
        FileNotFoundError: files are missing; the message says which to put where. They are not fetched.
        ValueError: an unknown name or split, or, without `skip`, bad data; the message names file, line and remedy.
    """
    reader = CAPTIONS[name]
    check_split(split)
    return reader(data_folder(data_root), split, skip)
