"""Photographs and captions in the format of Karpathy and Fei-Fei's splits."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.datasets.images.caption_data import CaptionedImages, ListedImage, complete
from experiments.datasets.images.image_files import ImageFile
from experiments.datasets.places import NEW_COPY, missing, plain_name
from experiments.files import read_json, reading

__all__ = ["read_karpathy"]

_KARPATHY = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_COCO = "http://images.cocodataset.org/zips/train2014.zip and val2014.zip"


def read_karpathy(path: Path, folder: Path, split: str, *, skip: bool = False) -> CaptionedImages:
    """Read one split of dataset_coco.json, or of dataset_flickr8k.json or dataset_flickr30k.json in the same format.

    Args:
        path: the JSON file: {"dataset": name, "images": [{"filename", "split", "sentences": [{"raw"}], ...}]}; an
            image's "filepath" is its folder, where there are several.
        folder: folder of the photographs.
        split: "train" (with "restval", as is usual), "val" or "test".
        skip: see `load_captions`.

    Raises:
        FileNotFoundError, ValueError: as of `load_captions`, or an image is said to be outside the folder.
    """
    if not path.is_file():
        expected = f"the file of this name in {_KARPATHY}, and the photographs ({_COCO}) in {folder}"
        raise missing(path, expected, folder.name)
    content, rows = read_json(path, "replace it by an intact copy"), list[ListedImage]()
    with reading(path, "the keys 'dataset' and 'images'"):
        name, images = plain_name(content["dataset"]), content["images"]  # files of the cache are called so
        for number, image in enumerate(images, 1):
            place = f"{path}: image {number}"
            with reading(place, "the keys 'split', 'filename' and 'sentences'", "mend or remove it"):
                if image["split"] in (("train", "restval") if split == "train" else (split,)):
                    rows.append(_karpathy_image(image, place, folder))
    if not rows:
        raise ValueError(f"{path}: no image of the split {split!r}; expected one at least. {NEW_COPY}")
    return complete(rows, expected="a sentence", name=name, split=split, skipped=Counter(), skip=skip)


def _karpathy_image(image: Mapping[str, Any], place: str, folder: Path) -> ListedImage:
    path = folder / plain_name(image.get("filepath", "")) / plain_name(image["filename"])
    captions = [" ".join(sentence["raw"].split()) for sentence in image["sentences"]]
    found = ImageFile(path) if path.is_file() else None
    return ListedImage(f"{place}: {path}", found, [caption for caption in captions if caption])
