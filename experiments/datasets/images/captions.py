"""Photographs and their captions: Flickr8k, and COCO or others by the split of Karpathy and Fei-Fei."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.datasets.images.caption_data import CaptionedImages, ListedImage, caption_words, complete
from experiments.datasets.images.image_files import SKIP_BAD, ImageFile, tar_images
from experiments.datasets.places import NEW_COPY, OTHER_FOLDER, SPLITS, data_folder
from experiments.datasets.text.parallel_text import read_lines
from experiments.datasets.untrusted import clipped, file_name, inside, is_there, shown
from experiments.files import read_json

__all__ = ["CAPTION_DATA", "CaptionedImages", "caption_words", "load_captions", "read_karpathy"]

CAPTION_DATA = ("flickr8k", "coco")
_FLICKR8K = "https://hockenmaier.cs.illinois.edu/8k-pictures.html"
_KARPATHY = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
_COCO = "http://images.cocodataset.org/zips/train2014.zip and val2014.zip"


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
    if name not in CAPTION_DATA:
        raise ValueError(f"no captioned images are named {name!r}; expected one of {', '.join(CAPTION_DATA)}")
    if split not in SPLITS:
        raise ValueError(f"no split is named {split!r}; expected one of {', '.join(SPLITS)}")
    root = data_folder(data_root)
    if name == "coco":
        return read_karpathy(root / "coco" / "dataset_coco.json", root / "coco", split, skip=skip)
    return _flickr8k(root / "flickr8k", split, skip)


def _flickr8k(folder: Path, split: str, skip: bool) -> CaptionedImages:
    stem = "dev" if split == "val" else split
    names = ("Flickr8k.token.txt", f"Flickr_8k.{stem}Images.txt")
    folders = [folder / "text", folder / "Flickr8k_text", folder]
    text = next((place for place in folders if is_there(place / names[0])), folders[0])
    for name in names:
        if not is_there(text / name):
            raise FileNotFoundError(
                f"{text / name} is missing; expected {' and '.join(names)} of Flickr8k_text.zip ({_FLICKR8K}). Put "
                f"them there, or name the folder that holds flickr8k by {OTHER_FOLDER}."
            )
    captions, skipped = _token_captions(text / names[0], skip)
    find = _flickr8k_images(folder, stem)
    listed = [line.decode(errors="replace").strip() for line in read_lines(text / names[1])]
    rows = [
        ListedImage(f"{text / names[1]}: line {number}: {clipped(name)}", find(name), captions.get(name, []))
        for number, name in enumerate(listed, 1)
    ]
    expected = f"lines of it in {text / names[0]}"
    return complete(rows, expected=expected, name="flickr8k", split=split, skipped=skipped, skip=skip)


def _token_captions(path: Path, skip: bool) -> tuple[dict[str, list[str]], Counter[str]]:
    """The captions of every image, and the number of lines that are none."""
    captions, skipped = defaultdict(list), Counter[str]()
    for number, line in enumerate(read_lines(path), 1):
        label, _, text = line.decode(errors="replace").partition("\t")
        image, _, which = label.rpartition("#")
        caption = " ".join(text.split())
        if image and which.isdecimal() and caption and "\ufffd" not in caption:
            captions[image].append(caption)
        elif skip:
            skipped["bad line"] += 1
        else:
            raise ValueError(
                f"{path}: line {number} is {line[:80]!r}; expected IMAGE#NUMBER, a tab and a caption (UTF-8). Mend or "
                f"remove this line, or {SKIP_BAD}."
            )
    return captions, skipped


def _flickr8k_images(folder: Path, stem: str) -> Callable[[str], ImageFile | None]:
    """What finds a photograph by its name."""
    for place in (folder / "Flicker8k_Dataset", folder / "images"):
        if place.is_dir():
            return _finder(place)
    archive = folder / f"images128_{stem}.tar"
    if not is_there(archive):
        raise FileNotFoundError(
            f"{folder}: no photographs; expected the folder Flicker8k_Dataset of Flickr8k_Dataset.zip ({_FLICKR8K}), "
            f"or {archive.name}. Put it there, or name the folder that holds flickr8k by {OTHER_FOLDER}."
        )
    return tar_images(archive).get


def _finder(folder: Path) -> Callable[[str], ImageFile | None]:
    root, present = folder.resolve(), {path.name for path in folder.iterdir()}
    return lambda name: ImageFile(inside(folder / name, root)) if name in present else None


def read_karpathy(path: Path, folder: Path, split: str, *, skip: bool = False) -> CaptionedImages:
    """Read one split of dataset_coco.json, or of dataset_flickr8k.json or dataset_flickr30k.json in the same format.

    Args:
        path: the JSON file: {"dataset": name, "images": [{"filename", "split", "sentences": [{"raw"}], ...}]}; an
            image's "filepath" is its folder, where there are several.
        folder: folder of the photographs.
        split: "train" (with "restval", as is usual), "val" or "test".
        skip: see `load_captions`.

    Returns:
        The photographs, in the order of the file, and their captions.

    Raises:
        FileNotFoundError: there is no such file, or, without `skip`, a photograph is missing.
        ValueError: the file is damaged or of another format, an image is said to be outside the folder, or, without
            `skip`, an image has no caption.
    """
    if not is_there(path):
        raise FileNotFoundError(
            f"{path} is missing; expected the file of this name in {_KARPATHY}. Put it there, and the photographs "
            f"({_COCO}) into {folder}, or name another folder by {OTHER_FOLDER}."
        )
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
