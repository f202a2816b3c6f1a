"""easy-VQA: questions about pictures of one coloured shape, 64 x 64 pixels.

Read are, in easy-vqa, {train,test}_images.npz (`images`, [pictures, 64, 64, 3] uint8), {train,test}_questions.json
(a list of [question, answer, place of the picture]) and answers.txt.

Source:
    Zhou, easy-VQA, 2019 (https://github.com/vzhou842/easy-VQA).
"""

from collections.abc import Set
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.entries import Entry, question_words, read_json_file
from experiments.datasets.questions.photographs import QUESTIONS, AskedPhotographs, PhotographOptions, encoded
from experiments.datasets.safe_arrays import read_arrays
from experiments.datasets.untrusted import is_there, read_bytes, shown

_FILES = (
    "answers.txt",
    *(f"{split}_{part}" for split in ("train", "test") for part in ("images.npz", "questions.json")),
)


@QUESTIONS.register("easy_vqa")
def read_easy_vqa(root: Path, options: PhotographOptions) -> dict[str, Questions]:
    """Read both splits; a tenth of the training pictures is for validation."""
    folder = root / "easy-vqa"
    for name in _FILES:
        if not is_there(folder / name):
            raise missing(folder / name, f"easy-VQA as {', '.join(_FILES)}", "easy-vqa")
    text = read_bytes(folder / "answers.txt", expected="a list of answers").decode(errors="replace")
    answers = frozenset(text.split())
    train, test = (_split(folder, split, answers, options.size) for split in ("train", "test"))
    return encoded(train, test, options, options.cache or folder / "cache")


def _split(folder: Path, split: str, answers: Set[str], size: int | None) -> AskedPhotographs:
    pixels = _pixels(folder / f"{split}_images.npz", size)
    path = folder / f"{split}_questions.json"
    content = read_json_file(path)
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: it holds {shown(content)}; expected a list of questions. {NEW_COPY}")
    entries, told = [], [set[str]() for _ in pixels]
    for number, row in enumerate(content, 1):
        place = f"{path}: question {number}"
        if not (isinstance(row, list) and len(row) == 3 and isinstance(row[2], int)):
            raise ValueError(f"{place} is {shown(row)}; expected [question, answer, place of the picture]. {NEW_COPY}")
        words, answer, picture = question_words(row[0], place), row[1], row[2]
        if answer not in answers:
            raise ValueError(f"{place}: the answer is {shown(answer)}; expected one of answers.txt. Mend either file.")
        if not 0 <= picture < len(pixels):
            raise ValueError(f"{place}: there is no picture {picture} of {len(pixels)}. Mend or remove the question.")
        entries.append(Entry(words, {answer: 1}, picture, _kind(words)))
        told[picture] |= _affirmed(words, answer, answers)
    return AskedPhotographs(pixels, [[" ".join(sorted(words))] if words else [] for words in told], entries)


def _pixels(path: Path, size: int | None) -> Tensor:
    images = read_arrays(path, remedy=NEW_COPY).get("images")
    if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        seen = "missing" if images is None else f"{images.dtype} {list(images.shape)}"
        raise ValueError(f"{path}: images is {seen}; expected uint8 [pictures, height, width, 3]. {NEW_COPY}")
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
