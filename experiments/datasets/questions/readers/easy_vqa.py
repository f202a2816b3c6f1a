"""easy-VQA: questions about pictures of one coloured shape, 64 x 64 pixels.

Read are, in easy-vqa, {train,test}_images.npz (`images`, [pictures, 64, 64, 3] uint8), {train,test}_questions.json
(a list of [question, answer, place of the picture]) and answers.txt.

Source:
    Zhou, easy-VQA, 2019 (https://github.com/vzhou842/easy-VQA).
"""

from collections.abc import Set
from pathlib import Path
from reprlib import repr as shown

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from experiments.datasets.arrays import read_arrays
from experiments.datasets.places import missing
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.entries import Entry, question_words, read_json_file
from experiments.datasets.questions.photographs import QUESTIONS, AskedPhotographs, PhotographOptions, encoded
from experiments.files import reading

_FILES = (
    "answers.txt",
    *(f"{split}_{part}" for split in ("train", "test") for part in ("images.npz", "questions.json")),
)


@QUESTIONS.register("easy_vqa")
def read_easy_vqa(root: Path, options: PhotographOptions) -> dict[str, Questions]:
    """Read both splits; a tenth of the training pictures is for validation."""
    folder = root / "easy-vqa"
    for name in _FILES:
        if not (folder / name).is_file():
            raise missing(folder / name, f"easy-VQA as {', '.join(_FILES)}", "easy-vqa")
    with reading(folder / "answers.txt", "a list of answers"):
        answers = frozenset((folder / "answers.txt").read_text(encoding="utf-8").split())
    train, test = (_split(folder, split, answers, options.size) for split in ("train", "test"))
    return encoded(train, test, options, options.cache or folder / "cache")


def _split(folder: Path, split: str, answers: Set[str], size: int | None) -> AskedPhotographs:
    pixels = _pixels(folder / f"{split}_images.npz", size)
    path = folder / f"{split}_questions.json"
    entries, told = [], [set[str]() for _ in pixels]
    for number, row in enumerate(read_json_file(path), 1):
        place = f"{path}: question {number}"
        with reading(place, "[question, answer, place of the picture]", "mend or remove it"):
            question, answer, picture = row
            if answer not in answers or not 0 <= picture < len(pixels):
                raise ValueError(f"{shown(row)}, with an answer not in answers.txt, or no picture of {len(pixels)}")
        words = question_words(question, place)
        entries.append(Entry(words, {answer: 1}, picture, _kind(words)))
        told[picture] |= _affirmed(words, answer, answers)
    return AskedPhotographs(pixels, [[" ".join(sorted(words))] if words else [] for words in told], entries)


def _pixels(path: Path, size: int | None) -> Tensor:
    with reading(path, "images, uint8 [pictures, height, width, 3]"):
        images = read_arrays(path)["images"]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
            raise ValueError(f"images is {images.dtype} {list(images.shape)}")
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    if size is None or pixels.shape[2:] == (size, size):
        return pixels
    return interpolate(pixels, (size, size), mode="bilinear", antialias=True)


def _kind(words: list[str]) -> str:
    if words[0] != "what":
        return "exists"
    return "color" if "color" in words else "shape"


def _affirmed(words: list[str], answer: str, answers: Set[str]) -> set[str]:
    """What a question and its answer say that the picture has: "red" of "is there a red shape", "yes"."""
    if answer not in ("yes", "no"):
        return {answer}
    is_denial = not {"not", "no"}.isdisjoint(words)
    return set(words) & answers - {"yes", "no"} if (answer == "yes") != is_denial else set()
