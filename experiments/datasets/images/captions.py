"""Photographs as files, and data sets of photographs with captions by their names."""

import io
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from experiments.datasets.places import NEW_COPY, check_split, data_folder, first_file, missing, plain_name
from experiments.datasets.text.parallel_text import read_lines
from experiments.files import read_json, reading
from pyro_attention.registry import Registry

# Of Pillow's formats those of photographs and of the web; others (EPS) are programs, which Ghostscript would run.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
SKIP_BAD = "pass --skip-bad (skip=True) to leave out and count such images"
_PHOTOGRAPH = f"a photograph that Pillow can read, such as a JPEG (of {', '.join(FORMATS)}, any kind)"


@dataclass(frozen=True)
class ImageFile:
    """A photograph on disk, which is opened when it is wanted."""

    path: Path  # the file, or the uncompressed tar archive that holds it
    member: str | None = None  # its name in the archive
    offset: int = 0  # where it begins in the archive
    size: int = -1  # its bytes in the archive

    @property
    def name(self) -> str:
        """Name without folders."""
        return Path(self.member or self.path).name

    def open(self) -> Image.Image:
        """Return the picture in RGB, whatever its colours are (grey, CMYK, a palette)."""
        name = str(self.path) if self.member is None else f"{self.path}, member {self.member}"
        with reading(name, _PHOTOGRAPH, f"replace it by an intact copy, or {SKIP_BAD}"):
            with self.path.open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
            return _decode(content)


def open_photograph(path: Path) -> Image.Image:
    """Return one photograph in RGB, turned upright where the camera noted how it was held."""
    with reading(path, _PHOTOGRAPH, "name another file"):
        return ImageOps.exif_transpose(_decode(path.read_bytes()))


def _decode(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        return image.convert("RGB")


def find_images(folders: Sequence[Path], archive: Path, expected: str) -> dict[str, ImageFile]:
    """Return photographs by their names: those of the first folder that is there, else of an uncompressed archive."""
    for folder in filter(Path.is_dir, folders):
        return {path.name: ImageFile(path) for path in sorted(folder.iterdir())}
    if not archive.is_file():
        raise missing(folders[0], f"the folder of {expected}, or {archive.name}", archive.parent.name)
    return tar_images(archive)


def tar_images(path: Path) -> dict[str, ImageFile]:
    """Return the files of an uncompressed tar archive by their names without folders."""
    with reading(path, "an uncompressed tar archive of photographs"), tarfile.open(path, "r:") as archive:
        members = [member for member in archive if member.isfile()]
    files = [ImageFile(path, member.name, member.offset_data, member.size) for member in members]
    return {file.name: file for file in files}


_WORDS = re.compile(r"\w+(?:-\w+)*|'\w+")


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption: in small letters, without punctuation.

    Words are runs of letters and digits, also with hyphens inside; what follows an apostrophe is a word of its own.
    Nearly what the evaluation of COCO does (the Penn Treebank's rules without punctuation): "n't" differs.
    """
    return _WORDS.findall(caption.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Photographs, each with its captions; the photographs are opened when they are wanted."""

    images: list[ImageFile]  # the photographs
    captions: list[list[str]]  # captions of every photograph, as they were written, with single blanks
    name: str  # name of the data set
    split: str  # name of the split
    skipped: dict[str, int] = field(default_factory=dict)  # captions and images that were left out, by the reason

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


class ListedImage(NamedTuple):
    """What a list of images says of one of them: where it is listed; None for an image that is missing."""

    place: str
    image: ImageFile | None
    captions: list[str]


def complete(
    rows: Sequence[ListedImage], *, name: str, split: str, skip: bool, skipped: Counter[str] | None = None
) -> CaptionedImages:
    """Check that every listed image is there and has captions; with `skip`, the others are left out and counted."""
    skipped = Counter() if skipped is None else skipped
    kept = []
    for place, image, captions in rows:
        if image is not None and captions:
            kept.append((image, captions))
        elif skip:
            skipped["no image" if image is None else "no caption"] += 1
        elif image is None:
            raise FileNotFoundError(f"{place} is missing; expected a photograph of this name. Add it, or {SKIP_BAD}.")
        else:
            raise ValueError(f"{place} has no caption; expected one or more. Add one, or {SKIP_BAD}.")
    if not kept:
        raise ValueError(f"{name}: no image of the split {split}; expected one at least; {NEW_COPY}")
    images, texts = map(list, zip(*kept, strict=True))
    return CaptionedImages(images, texts, name, split, dict(skipped))


# From the folder of the data sets, the name of a split, and whether bad images are left out, to the images.
CAPTIONS: Registry[Callable[[Path, str, bool], CaptionedImages]] = Registry("data set of captioned images")


def load_captions(name: str, split: str, *, data_root: Path | str | None = None, skip: bool = False) -> CaptionedImages:
    """Load one split of a data set of captioned photographs; no photograph is opened yet.

    Files are described at the reader of the data set. With `skip`, lines that are no caption, images without a caption
    and captions without an image are left out, and counted in `skipped`.
    """
    reader = CAPTIONS[name]
    check_split(split)
    return reader(data_folder(data_root), split, skip)


@CAPTIONS.register("flickr8k")
def read_flickr8k(root: Path, split: str, skip: bool) -> CaptionedImages:
    """Flickr8k: five captions of each of 6000, 1000 and 1000 photographs, the official split; given on request.

    Read are Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt in flickr8k, flickr8k/text or
    flickr8k/Flickr8k_text, and the photographs in flickr8k/Flicker8k_Dataset (the archive's spelling) or
    flickr8k/images, or else in the uncompressed archives flickr8k/images128_{train,dev,test}.tar.

    Source:
        Hodosh, Young and Hockenmaier, Framing Image Description as a Ranking Task, 2013.
    """
    folder, stem = root / "flickr8k", "dev" if split == "val" else split
    source = "Flickr8k (https://hockenmaier.cs.illinois.edu/8k-pictures.html)"
    folders = folder / "text", folder / "Flickr8k_text", folder
    tokens, listed = (
        first_file([place / name for place in folders], f"the file of this name of {source}", "flickr8k")
        for name in ("Flickr8k.token.txt", f"Flickr_8k.{stem}Images.txt")
    )
    captions, skipped = _token_captions(tokens, skip)
    places = folder / "Flicker8k_Dataset", folder / "images"
    images = find_images(places, folder / f"images128_{stem}.tar", f"photographs of {source}")
    names = [line.decode(errors="replace").strip() for line in read_lines(listed)]
    rows = [
        ListedImage(f"{listed}: line {number}: {name}", images.get(name), captions.get(name, []))
        for number, name in enumerate(names, 1)
    ]
    return complete(rows, name="flickr8k", split=split, skip=skip, skipped=skipped)


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


@CAPTIONS.register("coco")
def read_coco(root: Path, split: str, skip: bool) -> CaptionedImages:
    """COCO's captions by the split of Karpathy and Fei-Fei, or one's own photographs in the same format.

    Read is coco/dataset_coco.json: {"dataset": name, "images": [{"filename", "split", "sentences": [{"raw"}]}]}; an
    image's "filepath" is its folder inside coco, where there are several. To "train" belongs "restval", as is usual.

    Source:
        Chen et al., Microsoft COCO Captions, 2015; Karpathy and Fei-Fei, Deep Visual-Semantic Alignments for Generating
        Image Descriptions, 2015.
    """
    folder = root / "coco"
    address = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
    path = first_file([folder / "dataset_coco.json"], f"the file of {address}, with the photographs beside it", "coco")
    content, rows = read_json(path, NEW_COPY), list[ListedImage]()
    splits = ("train", "restval") if split == "train" else (split,)
    with reading(path, "the keys 'dataset' and 'images'"):
        name, images = plain_name(content["dataset"]), content["images"]  # files of the cache are called so
    for number, entry in enumerate(images, 1):
        place = f"{path}: image {number}"
        with reading(place, "the keys 'split', 'filename' and 'sentences'", "mend or remove it"):
            if entry["split"] in splits:
                file = folder / plain_name(entry.get("filepath", "")) / plain_name(entry["filename"])
                texts = [" ".join(sentence["raw"].split()) for sentence in entry["sentences"]]
                image = ImageFile(file) if file.is_file() else None
                rows.append(ListedImage(f"{place}: {file}", image, list(filter(None, texts))))
    return complete(rows, name=name, split=split, skip=skip)
