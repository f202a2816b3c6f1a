"""Flickr8k: five captions of each of 6000, 1000 and 1000 photographs, the official split; given on request.

Read are Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt in flickr8k, flickr8k/text or
flickr8k/Flickr8k_text, and the photographs in flickr8k/Flicker8k_Dataset (the archive's spelling) or flickr8k/images,
or else in the uncompressed archives flickr8k/images128_{train,dev,test}.tar.

Source:
    Hodosh, Young and Hockenmaier, Framing Image Description as a Ranking Task, 2013.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from experiments.datasets.images.caption_data import CAPTIONS, CaptionedImages, ListedImage, complete
from experiments.datasets.images.image_files import SKIP_BAD, ImageFile, tar_images
from experiments.datasets.places import OTHER_FOLDER, missing
from experiments.datasets.text.parallel_text import read_lines

_FLICKR8K = "https://hockenmaier.cs.illinois.edu/8k-pictures.html"


@CAPTIONS.register("flickr8k")
def read_flickr8k(root: Path, split: str, skip: bool) -> CaptionedImages:
    """Read a split from Flickr8k_text.zip and the photographs."""
    folder = root / "flickr8k"
    stem = "dev" if split == "val" else split
    names = ("Flickr8k.token.txt", f"Flickr_8k.{stem}Images.txt")
    folders = [folder / "text", folder / "Flickr8k_text", folder]
    text = next((place for place in folders if (place / names[0]).is_file()), folders[0])
    for name in names:
        if not (text / name).is_file():
            raise missing(text / name, f"{' and '.join(names)} of Flickr8k_text.zip ({_FLICKR8K})", "flickr8k")
    captions, skipped = _token_captions(text / names[0], skip)
    find = _flickr8k_images(folder, stem)
    listed = [line.decode(errors="replace").strip() for line in read_lines(text / names[1])]
    rows = [
        ListedImage(f"{text / names[1]}: line {number}: {name}", find(name), captions.get(name, []))
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
    place = next((place for place in (folder / "Flicker8k_Dataset", folder / "images") if place.is_dir()), None)
    if place is not None:
        present = {path.name: ImageFile(path) for path in place.iterdir()}
        return present.get
    archive = folder / f"images128_{stem}.tar"
    if not archive.is_file():
        raise FileNotFoundError(
            f"{folder}: no photographs; expected the folder Flicker8k_Dataset of Flickr8k_Dataset.zip ({_FLICKR8K}), "
            f"or {archive.name}. Put it there, or name the folder that holds flickr8k by {OTHER_FOLDER}."
        )
    return tar_images(archive).get
