"""Photographs and their captions, by the name of their data set."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.images.caption_data import CAPTIONS, CaptionedImages
from experiments.datasets.places import check_split, data_folder

__all__ = ["CAPTIONS", "CaptionedImages", "load_captions"]

import_readers("experiments.datasets.images.readers")


def load_captions(name: str, split: str, *, data_root: Path | str | None = None, skip: bool = False) -> CaptionedImages:
    """Load one split of a data set of captioned photographs; no photograph is opened yet.

    `flickr8k`: five captions of each of 6000, 1000 and 1000 photographs, the official split. Read are
    Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt in flickr8k, flickr8k/text or flickr8k/Flickr8k_text,
    and the photographs in flickr8k/Flicker8k_Dataset (the archive's spelling) or flickr8k/images, or else in the
    uncompressed archives flickr8k/images128_{train,dev,test}.tar. `coco`: coco/dataset_coco.json and the photographs in
    coco/train2014 and coco/val2014; see `read_karpathy`.

    Args:
        name: "flickr8k" or "coco".
        split: "train", "val" or "test".
        data_root: folder that holds flickr8k or coco; by default $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention.
        skip: leave out, and count in `skipped`, lines that are no caption, images without a caption and captions
            without an image.

    Returns:
        The photographs, in the order of the split, and their captions.

    Raises:
        FileNotFoundError: files are missing; the message says which to put where. They are not fetched: Flickr8k is
            given on request, and COCO has 19 GB.
        ValueError: an unknown name or split, or, without `skip`, bad data; the message names file, line and remedy.

    Source:
        Hodosh, Young and Hockenmaier, Framing Image Description as a Ranking Task, 2013; Chen et al., Microsoft COCO
        Captions, 2015; Karpathy and Fei-Fei, Deep Visual-Semantic Alignments for Generating Image Descriptions, 2015.
    """
    reader = CAPTIONS[name]
    check_split(split)
    return reader(data_folder(data_root), split, skip)
