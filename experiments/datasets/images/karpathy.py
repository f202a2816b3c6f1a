"""Photographs and captions in the format of Karpathy and Fei-Fei's splits."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.datasets.images.caption_data import CaptionedImages, ListedImage, complete
from experiments.datasets.images.image_files import ImageFile
from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.untrusted import clipped, file_name, inside, is_there, shown
from experiments.files import read_json

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
    if not is_there(path):
        expected = f"the file of this name in {_KARPATHY}, and the photographs ({_COCO}) in {folder}"
        raise missing(path, expected, folder.name)
    content = read_json(path, NEW_COPY)
    try:
        name, images = content["dataset"], list(content["images"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error!r}; expected the keys 'dataset' and 'images'. {NEW_COPY}") from error
    if not isinstance(name, str):
        raise ValueError(f"{path}: 'dataset' is {shown(name)}; expected a name. {NEW_COPY}")
    file_name(name, f"{path}: 'dataset'")  # files of the cache are called so
    root, rows = folder.resolve(), []
    for number, image in enumerate(images, 1):
        try:
            if image["split"] in (("train", "restval") if split == "train" else (split,)):
                rows.append(_karpathy_image(image, f"{path}: image {number}", folder, root))
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"{path}: image {number}: {clipped(repr(error))}; expected the keys 'split', 'filename' and "
                f"'sentences'. {NEW_COPY}"
            ) from error
    if not rows:
        raise ValueError(f"{path}: no image of the split {split!r}; expected one at least. {NEW_COPY}")
    return complete(rows, expected="a sentence", name=name, split=split, skipped=Counter(), skip=skip)


def _karpathy_image(image: Mapping[str, Any], place: str, folder: Path, root: Path) -> ListedImage:
    path = folder / image.get("filepath", "") / image["filename"]
    captions = [" ".join(sentence["raw"].split()) for sentence in image["sentences"]]
    "".join(captions).encode()  # JSON can hold halves of characters, which no file takes
    try:
        found = ImageFile(path) if is_there(inside(path, root)) else None
    except ValueError as error:
        raise ValueError(f"{place}: {error}. {NEW_COPY}") from error
    return ListedImage(f"{place}: {clipped(str(path))}", found, [caption for caption in captions if caption])
