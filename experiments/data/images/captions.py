"""Photographs as files, and data sets of photographs with captions."""

import io
import re
import tarfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from experiments.data.storage import NEW_COPY, data_folder, first_file, missing, plain_name
from experiments.data.text.parallel_text import read_lines
from experiments.files import read_json, reading
from pyro_attention.registry import Registry

# only formats of photographs and of the web: Pillow would run files of other formats (EPS) as programs by Ghostscript
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_PHOTOGRAPH = f"a photograph that Pillow can read, such as a JPEG (of {', '.join(FORMATS)}, any kind)"


@dataclass(frozen=True)
class ImageFile:
    """Photograph on disk, which is opened only when needed.

    Attributes:
        path: The file, or the uncompressed tar archive that holds it.
        member: Name of the file in the archive; None for a file of its own.
        offset: Byte of the archive where the file begins.
        size: Bytes of the file; -1 for a file of its own.
    """

    path: Path
    member: str | None = None
    offset: int = 0
    size: int = -1

    @property
    def name(self) -> str:
        """Name of the file without folders."""
        return Path(self.member or self.path).name

    def open(self) -> Image.Image:
        """Return the decoded picture; see `decode_photograph`."""
        name = str(self.path) if self.member is None else f"{self.path}, member {self.member}"
        with reading(name, _PHOTOGRAPH):
            with self.path.open("rb") as file:
                file.seek(self.offset)
                content = file.read(self.size)
            return decode_photograph(content)


def open_photograph(path: Path) -> Image.Image:
    """Return the decoded picture of one file; see `decode_photograph`."""
    with reading(path, _PHOTOGRAPH, "name another file"):
        return decode_photograph(path.read_bytes())


def decode_photograph(content: bytes) -> Image.Image:
    """Decode the bytes of a file into an upright picture in RGB.

    The picture is turned upright if the camera noted its orientation (EXIF). Gray levels of 16 bits are rounded to 8
    bits, and transparent pixels get a white background. An animation gives its first picture.
    """
    with Image.open(io.BytesIO(content), formats=FORMATS) as image:
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # Pillow's conversion would cut all levels off at 255
        levels = np.asarray(upright)
        transparent = levels == upright.info.get("transparency", -1)
        return Image.fromarray(np.where(transparent, 255, (levels / 257).round()).astype(np.uint8)).convert("RGB")
    if "A" in upright.getbands() or "a" in upright.getbands() or "transparency" in upright.info:
        picture = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return upright.convert("RGB")


def find_images(folders: Sequence[Path], archive: Path, expected: str) -> dict[str, ImageFile]:
    """Return photographs by name, from the first folder that exists or else from an uncompressed archive."""
    for folder in filter(Path.is_dir, folders):
        return {path.name: ImageFile(path) for path in sorted(folder.iterdir())}
    if not archive.is_file():
        raise missing(folders[0], f"the folder of {expected}, or {archive.name}", archive.parent.name)
    return tar_images(archive)


def tar_images(path: Path) -> dict[str, ImageFile]:
    """Return the files of an uncompressed tar archive by name without folders."""
    with reading(path, "an uncompressed tar archive of photographs"), tarfile.open(path, "r:") as archive:
        members = [member for member in archive if member.isfile()]
    files = [ImageFile(path, member.name, member.offset_data, member.size) for member in members]
    return {file.name: file for file in files}


_WORDS = re.compile(r"\w+(?:-\w+)*|'\w+")


def caption_words(caption: str) -> list[str]:
    """Return the words of a caption in lower case, without punctuation.

    Words are runs of letters and digits, which may have hyphens inside. The part after an apostrophe is a separate
    word. The rules differ from the evaluation of COCO (Penn Treebank without punctuation) only in "n't".
    """
    return _WORDS.findall(caption.lower().replace("’", "'"))


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Photographs with captions; the photographs are opened only when needed.

    Attributes:
        images: The photographs.
        captions: Captions of each photograph as they were written, with single blanks.
        name: Name of the data set.
        split: Name of the split.
    """

    images: list[ImageFile]
    captions: list[list[str]]
    name: str
    split: str

    def __len__(self) -> int:
        return len(self.images)


# a reader takes the folder of the data sets and the name of a split
CAPTIONS: Registry[Callable[[Path, str], CaptionedImages]] = Registry("data set of captioned images")


def load_captions(name: str, split: str, *, data_root: Path | str | None = None) -> CaptionedImages:
    """Load one split of a data set of captioned photographs, without opening the photographs.

    The reader of the data set describes the files.
    """
    return CAPTIONS[name](data_folder(data_root), split)


@CAPTIONS.register("flickr8k")
def read_flickr8k(root: Path, split: str) -> CaptionedImages:
    """Read Flickr8k: five captions of each of 6000, 1000 and 1000 photographs, in the official split.

    The data set is given on request. The files are Flickr8k.token.txt and Flickr_8k.{train,dev,test}Images.txt in
    flickr8k/text. The photographs lie in flickr8k/Flicker8k_Dataset (the archive's spelling), or else in the
    uncompressed archives flickr8k/images128_{train,dev,test}.tar.

    Source:
        Hodosh, Young and Hockenmaier, Framing Image Description as a Ranking Task, 2013.
    """
    folder, stem = root / "flickr8k", "dev" if split == "val" else split
    source = "Flickr8k (https://hockenmaier.cs.illinois.edu/8k-pictures.html)"
    tokens, listed = (
        first_file([folder / "text" / name], f"the file of this name of {source}", "flickr8k")
        for name in ("Flickr8k.token.txt", f"Flickr_8k.{stem}Images.txt")
    )
    captions = defaultdict(list)
    for number, line in enumerate(read_lines(tokens), 1):
        with reading(f"{tokens}: line {number}", "IMAGE#NUMBER, a tab and a caption (UTF-8)", "correct or remove it"):
            label, text = line.decode().split("\t")
            captions[label.rpartition("#")[0]].append(" ".join(text.split()))
    images = find_images([folder / "Flicker8k_Dataset"], folder / f"images128_{stem}.tar", f"photographs of {source}")
    names = [line.decode().strip() for line in read_lines(listed)]
    for name in names:
        if name not in images or not captions[name]:
            raise ValueError(f"{listed}: {name} has no photograph or no caption; add both, or remove the line")
    return CaptionedImages([images[name] for name in names], [captions[name] for name in names], "flickr8k", split)


@CAPTIONS.register("coco")
def read_coco(root: Path, split: str) -> CaptionedImages:
    """Read COCO's captions in the split of Karpathy and Fei-Fei, or your own photographs in the same format.

    The file is coco/dataset_coco.json: {"dataset": name, "images": [{"filename", "split", "sentences": [{"raw"}]}]}.
    The optional "filepath" of an image is its folder inside coco. The split "restval" belongs to "train", as is usual.

    Source:
        Chen et al., Microsoft COCO Captions, 2015; Karpathy and Fei-Fei, Deep Visual-Semantic Alignments for Generating
        Image Descriptions, 2015.
    """
    folder = root / "coco"
    address = "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip"
    path = first_file([folder / "dataset_coco.json"], f"the file of {address}, with the photographs beside it", "coco")
    content, files, captions = read_json(path, NEW_COPY), list[ImageFile](), list[list[str]]()
    splits = ("train", "restval") if split == "train" else (split,)
    with reading(path, "the keys 'dataset' and 'images'"):
        name, images = plain_name(content["dataset"]), content["images"]  # the name is used for files of the cache
    for number, entry in enumerate(images, 1):
        with reading(
            f"{path}: image {number}", "'split', the 'filename' of a photograph and 'sentences'", "correct or remove it"
        ):
            if entry["split"] in splits:
                file = folder / plain_name(entry.get("filepath", "")) / plain_name(entry["filename"])
                texts = [" ".join(sentence["raw"].split()) for sentence in entry["sentences"]]
                if not file.is_file() or not any(texts):
                    raise ValueError(f"{file} is missing, or has no caption")
                files.append(ImageFile(file))
                captions.append(list(filter(None, texts)))
    if not files:
        raise ValueError(f"{path}: no image of the split {split}; expected at least one")
    return CaptionedImages(files, captions, name, split)
