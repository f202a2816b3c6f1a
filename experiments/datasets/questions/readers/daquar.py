"""DAQUAR: questions about 1449 photographs of rooms (NYU Depth v2), each answered by one person.

Read are, in daquar or daquar/text, data.csv (question,answer,image_id) with train_images_list.txt and
test_images_list.txt; or else the original qa.894.raw.train.txt and qa.894.raw.test.txt, where a line of a question
("what is on the desk in the image3 ?") and one of its answer alternate. Photographs are image1.png or .jpg and so on in
daquar/images or daquar/nyu_depth_images, or else in the uncompressed archive daquar/images160.tar.

An answer of several things ("table, chair") is one class, as it is written, and accuracy asks for it word for word.
WUPS, which the authors report too, is not computed: it needs WordNet, which is a download of its own.

Source:
    Malinowski and Fritz, A Multi-World Approach to Question Answering about Real-World Scenes, 2014.
"""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from experiments.datasets.images.caption_data import ListedImage, complete
from experiments.datasets.images.image_features import resized_images
from experiments.datasets.images.image_files import ImageFile, tar_images
from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.entries import Entry, question_words
from experiments.datasets.questions.photographs import QUESTIONS, AskedPhotographs, PhotographOptions, encoded
from experiments.files import reading

_LISTS = {split: f"{split}_images_list.txt" for split in ("train", "test")}
_ORIGINAL = {split: f"qa.894.raw.{split}.txt" for split in ("train", "test")}
_ABOUT = re.compile(r"^(.*?)\s*(?:\bin\s+)?(?:\bthe\s+)?(image\d+)\s*\??$")
_SIZE = 192


class _Row(NamedTuple):
    place: str
    words: list[str]
    answer: str
    photograph: str


@QUESTIONS.register("daquar")
def read_daquar(root: Path, options: PhotographOptions) -> dict[str, Questions]:
    """Read both splits; a tenth of the training photographs is for validation."""
    folder = root / "daquar"
    cache = options.cache or folder / "cache"
    rows = _rows(folder)
    photographs = _photographs(folder)
    train, test = (_asked(split, rows[split], photographs, options, cache) for split in ("train", "test"))
    return encoded(train, test, options, cache)


def _asked(
    split: str, rows: list[_Row], photographs: Mapping[str, ImageFile], options: PhotographOptions, cache: Path
) -> AskedPhotographs:
    about = defaultdict(list)
    for row in rows:
        about[row.photograph].append(row)
    listed = [
        ListedImage(f"{found[0].place}: {name}", photographs.get(name), [row.answer for row in found])
        for name, found in about.items()
    ]
    data = complete(listed, expected="an answer", name="daquar", split=split, skipped=Counter(), skip=options.skip)
    data, pixels = resized_images(data, options.size or _SIZE, cache, skip=options.skip, progress=options.progress)
    places = {Path(image.name).stem: place for place, image in enumerate(data.images)}
    entries = [
        Entry(row.words, {row.answer: 1}, places[row.photograph], _kind(row.words))
        for row in rows
        if row.photograph in places
    ]
    return AskedPhotographs(pixels, data.captions, entries)


def _rows(folder: Path) -> dict[str, list[_Row]]:
    """The questions of both splits."""
    for text in (folder / "text", folder):
        if (text / "data.csv").is_file():
            return _table(text)
        if (text / _ORIGINAL["train"]).is_file():
            return {split: list(_pairs(text / name)) for split, name in _ORIGINAL.items()}
    expected = f"it with {' and '.join(_LISTS.values())}, or {' and '.join(_ORIGINAL.values())}"
    raise missing(folder / "text" / "data.csv", expected, "daquar")


def _lines(path: Path) -> list[str]:
    with reading(path, "a text file of DAQUAR in UTF-8"):
        return path.read_bytes().decode("utf-8-sig").splitlines()


def _table(text: Path) -> dict[str, list[_Row]]:
    split_of = {name.strip(): split for split, file in _LISTS.items() for name in _lines(text / file)}
    path, found = text / "data.csv", {split: list[_Row]() for split in _LISTS}
    reader = csv.DictReader(_lines(path), strict=True)
    with reading(path, "lines of question,answer,image_id"):
        for row in reader:
            place = f"{path}: line {reader.line_num}"
            question, answer, photograph = (row.get(name) for name in ("question", "answer", "image_id"))
            if photograph not in split_of:
                raise ValueError(f"{place}: {photograph} is in neither list of images; add it, or remove the line")
            found[split_of[photograph]].append(_row(place, question, answer, photograph))
    return found


def _pairs(path: Path) -> Iterator[_Row]:
    lines = _lines(path)
    for number in range(0, len(lines), 2):
        place = f"{path}: line {number + 1}"
        match = _ABOUT.match(lines[number].strip())
        if match is None or number + 1 == len(lines):
            raise ValueError(
                f"{place}: {lines[number]!r}; expected a question in image3, say, and a line of its answer. {NEW_COPY}"
            )
        yield _row(place, match[1], lines[number + 1], match[2])


def _row(place: str, question: str | None, answer: str | None, photograph: str) -> _Row:
    text = " ".join((answer or "").split())
    if not text:
        raise ValueError(f"{place}: the question has no answer; expected one. Add it, or remove the question.")
    return _Row(place, question_words(question, place), text, photograph)


def _photographs(folder: Path) -> dict[str, ImageFile]:
    """Photographs by their names without endings."""
    place = next((place for place in (folder / "images", folder / "nyu_depth_images") if place.is_dir()), None)
    if place is not None:
        return {path.stem: ImageFile(path) for path in sorted(place.iterdir())}
    archive = folder / "images160.tar"
    if not archive.is_file():
        raise missing(folder / "images", f"the folder of photographs, or {archive.name}", "daquar")
    return {Path(name).stem: file for name, file in tar_images(archive).items()}


def _kind(words: list[str]) -> str:
    if words[0] == "how":
        return "count"
    return "color" if any(word.startswith(("color", "colour")) for word in words) else "object"
