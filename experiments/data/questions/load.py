"""Questions about pictures: the class of all sets of questions, and readers of sets about photographs."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from experiments.data.images.captions import CaptionedImages, ImageFile, caption_words, find_images
from experiments.data.images.digit_scenes import cell_positions
from experiments.data.images.image_features import (
    GridEncoder,
    encode_photograph,
    grid_features,
    region_encoder,
    resized_images,
)
from experiments.data.images.region_options import RegionOptions
from experiments.data.images.regions import Regions
from experiments.data.storage import NEW_COPY, data_folder, first_file, read_arrays
from experiments.files import reading
from pyro_attention.registry import Registry
from pyro_attention.text_lines import read_lines


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions with their answers, and the regions of the photographs that they are about."""

    name: str  # name of the data set
    questions: Sequence[Sequence[str]]  # words of every question
    answers: Sequence[str]  # answer to every question
    photographs: Tensor  # ``[questions]``, index of every question's photograph among the regions
    regions: Regions  # the regions of all photographs
    kinds: Sequence[str]  # kind of every question, such as "count"; accuracies are reported by kind
    relevant: Tensor | None = None  # ``[questions, N]`` bool, the regions that the answer depends on, where known
    votes: Sequence[Mapping[str, int]] | None = None  # number of people by answer, where several were asked

    def __len__(self) -> int:
        return len(self.questions)

    def pick(self, indices: Sequence[int]) -> Questions:
        """Return the questions with these indices, about the same photographs."""
        picked = torch.as_tensor(indices, dtype=torch.long)
        return replace(
            self,
            questions=[self.questions[index] for index in indices],
            answers=[self.answers[index] for index in indices],
            photographs=self.photographs[picked],
            kinds=[self.kinds[index] for index in indices],
            relevant=None if self.relevant is None else self.relevant[picked],
            votes=None if self.votes is None else [self.votes[index] for index in indices],
        )

    def of_kinds(self, kinds: Sequence[str]) -> Questions:
        """Return the questions of some kinds."""
        return self.pick([index for index, kind in enumerate(self.kinds) if kind in kinds])

    def held_out(self, share: float, name: str) -> tuple[Questions, Questions]:
        """Divide the questions by photograph: return the remaining ones, and those about a share that is held out.

        The photographs that are held out are random, and the same ones in every call.
        """
        count = len(self.regions)
        if count < 2:
            raise ValueError(f"{self.name}: {count} photograph; expected at least two, of which one is held out")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        is_held = torch.zeros(count, dtype=torch.bool)
        is_held[order[: max(1, round(share * count))]] = True
        asked = is_held[self.photographs]
        remaining, held_out = ((asked == value).nonzero().flatten().tolist() for value in (False, True))
        return self.pick(remaining), replace(self.pick(held_out), name=name)


class Entry(NamedTuple):
    """A question with its words, its answer, the index of its photograph, its kind, and the votes of several people."""

    words: list[str]
    answer: str
    photograph: int
    kind: str
    votes: Mapping[str, int] | None = None


def question_words(text: str) -> list[str]:
    """Return the words of a question in small letters, without punctuation; raise ValueError without any."""
    if not (words := caption_words(text)):
        raise ValueError(f"the question is {text!r}; expected a text with a word")
    return words


def as_questions(name: str, entries: Sequence[Entry], regions: Regions) -> Questions:
    """Return the entries as questions, in their order."""
    words, answers, photographs, kinds, votes = zip(*entries, strict=True)
    several = None if None in votes else votes
    return Questions(name, words, answers, torch.tensor(photographs), regions, kinds, votes=several)


# Readers: functions of the folder of the data sets, the options of regions, and device and progress, to the splits.
QUESTIONS: Registry[Callable[[Path, RegionOptions, dict[str, Any]], dict[str, Questions]]] = Registry(
    "data set of questions"
)


def load_photo_questions(
    name: str, options: RegionOptions, *, data_root: Path | None = None, **where: Any
) -> dict[str, Questions]:
    """Load the splits "train", "val" and "test" of a data set; the features of photographs are cached on disk.

    The reader of the data set describes its files. ``where`` holds the device and whether to show progress.
    """
    return QUESTIONS[name](data_folder(data_root), options, {"device": "cpu", "progress": False} | where)


class AskedPhotographs(NamedTuple):
    """Photographs of a split, with the questions about them."""

    pixels: Tensor  # [photographs, 3, height, width] uint8
    captions: Sequence[Sequence[str]]  # texts that the encoder own learns to predict; empty where there are none
    entries: Sequence[Entry]  # the questions


def encoded(
    train: AskedPhotographs, test: AskedPhotographs, options: RegionOptions, cache: Path, where: dict[str, Any]
) -> dict[str, Questions]:
    """Hold out a tenth of the training photographs for validation, and encode all photographs.

    The encoder own is trained on the remaining training photographs alone.
    """
    # photographs are divided before any features exist
    nothing = Regions(torch.zeros(len(train.pixels), 1), torch.zeros(0), (1, 1), torch.zeros(0))
    train_questions, val_questions = as_questions("train", train.entries, nothing).held_out(0.1, "val")
    training = [index for index in train_questions.photographs.unique().tolist() if train.captions[index]]
    encoder = region_encoder(
        options, train.pixels[training], [train.captions[index] for index in training], cache, **where
    )
    train_regions, test_regions = (
        _cells(encoder, grid_features(encoder, part.pixels, cache, **where), part.pixels) for part in (train, test)
    )
    tested = as_questions("test", test.entries, test_regions)
    return {
        "train": replace(train_questions, regions=train_regions),
        "val": replace(val_questions, regions=train_regions),
        "test": tested,
    }


def regions_of(image: Image.Image, like: Regions, *, device: torch.device | str = "cpu") -> Regions:
    """Return the regions of another photograph by the encoder of ``like``; its picture has the photograph's shape."""
    if like.encoder is None:
        raise ValueError(
            "these regions have no encoder (they were read from files or drawn); expected regions of "
            "an encoder, such as those of easy_vqa and daquar"
        )
    features, picture = encode_photograph(like.encoder, image, like.pictures.size(-1), device=device)
    return _cells(like.encoder, features, picture[None])


def _cells(encoder: GridEncoder, features: Tensor, pictures: Tensor) -> Regions:
    grid = (math.isqrt(features.size(1)),) * 2
    positions = cell_positions(grid).to(features.dtype).expand(len(features), -1, -1)
    features = torch.cat([features, positions], -1)
    return Regions(features, torch.ones(features.shape[:2], dtype=torch.bool), grid, pictures, encoder)


@QUESTIONS.register("easy_vqa")
def read_easy_vqa(root: Path, options: RegionOptions, where: dict[str, Any]) -> dict[str, Questions]:
    """Read easy-VQA: questions about pictures of one colored shape, 64 x 64 pixels.

    The files, in easy-vqa, are {train,test}_images.npz (`images`, [pictures, 64, 64, 3] uint8),
    {train,test}_questions.json (a list of [question, answer, index of the picture]) and answers.txt, with an answer on
    every line. A tenth of the training pictures is for
    validation.

    Source:
        Zhou, easy-VQA, 2019 (https://github.com/vzhou842/easy-VQA).
    """
    folder = root / "easy-vqa"
    path = first_file([folder / "answers.txt"], "the files of https://github.com/vzhou842/easy-VQA", "easy-vqa")
    with reading(path, "a list of answers"):
        answers = frozenset(_names_in(path))
    train, test = (_easy_split(folder, split, answers, options.size) for split in ("train", "test"))
    return encoded(train, test, options, options.cache or folder / "cache", where)


def _easy_split(folder: Path, split: str, answers: Set[str], size: int | None) -> AskedPhotographs:
    path = folder / f"{split}_images.npz"
    with reading(path, "images, uint8 [pictures, height, width, 3]"):
        pixels = torch.from_numpy(read_arrays(path)["images"]).permute(0, 3, 1, 2).contiguous()
    if size is not None and pixels.shape[2:] != (size, size):
        pixels = interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    path = folder / f"{split}_questions.json"
    with reading(path, "an intact JSON file"):
        rows = json.loads(path.read_bytes())
    entries, properties = [], [set[str]() for _ in pixels]
    for number, row in enumerate(rows, 1):
        with reading(f"{path}: question {number}", "[question, answer, index of the picture]", "correct or remove it"):
            question, answer, picture = row
            if answer not in answers or not 0 <= picture < len(pixels):
                raise ValueError(
                    f"an answer that is not in answers.txt, or an index outside of the {len(pixels)} pictures"
                )
            words = question_words(question)
            kind = "exists" if words[0] != "what" else "color" if "color" in words else "shape"
            entries.append(Entry(words, answer, picture, kind))
            properties[picture] |= _affirmed(words, answer, answers)
    return AskedPhotographs(pixels, [[" ".join(sorted(words))] if words else [] for words in properties], entries)


def _affirmed(words: list[str], answer: str, answers: Set[str]) -> set[str]:
    """Return the properties of the picture that follow from a question and its answer.

    Example:
        >>> _affirmed(["is", "there", "a", "red", "shape"], "yes", {"red", "blue", "yes", "no"})
        {'red'}
    """
    if answer not in ("yes", "no"):
        return {answer}
    is_denial = not {"not", "no"}.isdisjoint(words)
    return set(words) & answers - {"yes", "no"} if (answer == "yes") != is_denial else set()


@QUESTIONS.register("daquar")
def read_daquar(root: Path, options: RegionOptions, where: dict[str, Any]) -> dict[str, Questions]:
    """Read DAQUAR: questions about 1449 photographs of rooms (NYU Depth v2), with the answer of one person.

    The files, in daquar or daquar/text, are data.csv (question,answer,image_id) with train_images_list.txt and
    test_images_list.txt. Photographs are image1.png or .jpg and so on in daquar/images, or else in the uncompressed
    archive daquar/images160.tar. A tenth of the training photographs is for validation.

    An answer of several things ("table, chair") is one class, and accuracy compares it word for word, in small letters.
    The authors also report WUPS. It needs WordNet, which has to be downloaded, and is not computed.

    Source:
        Malinowski and Fritz, A Multi-World Approach to Question Answering about Real-World Scenes, 2014.
    """
    folder = root / "daquar"
    cache = options.cache or folder / "cache"
    path = first_file(
        [text / "data.csv" for text in (folder / "text", folder)], "this file and the two lists of images", "daquar"
    )
    images = find_images([folder / "images"], folder / "images160.tar", "photographs image1.png and so on")
    files_of = defaultdict[str, list[ImageFile]](list)
    for name, image in images.items():
        files_of[Path(name).stem].append(image)
    listed = {split: _names_in(path.with_name(f"{split}_images_list.txt")) for split in ("train", "test")}
    if both := sorted(set(listed["train"]) & set(listed["test"])):
        raise ValueError(
            f"{path.parent}: {both[0]} is in train_images_list.txt and in test_images_list.txt; expected every "
            f"photograph in one of them ({len(both)} are in both)"
        )
    split_of = {name: split for split, names in listed.items() for name in names}
    entries: dict[str, list[Entry]] = {"train": [], "test": []}
    answers: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    with (
        reading(path, "a table in UTF-8 with the columns question, answer and image_id", "correct the file"),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows, 1):
        with reading(f"{path}: question {number}", "question,answer,image_id, of a listed image", "correct it"):
            name, split = row["image_id"], split_of[row["image_id"]]
            answers[split].setdefault(name, []).append(row["answer"])
            index = list(answers[split]).index(name)
            entries[split].append(_entry(question_words(row["question"]), row["answer"], index))
    parts = []
    for split, about in answers.items():
        absent = [name for name in about if name not in files_of]
        if absent or not about:
            raise ValueError(f"{path}: no photograph {', '.join(absent)}, or no question to {split}; {NEW_COPY}")
        if several := next((name for name in about if len(files_of[name]) > 1), None):
            names = ", ".join(file.name for file in files_of[several])
            raise ValueError(f"{folder / 'images'}: {several} may be {names}; expected one file of each name")
        data = CaptionedImages([files_of[name][0] for name in about], list(about.values()), "daquar", split)
        pixels = resized_images(data, options.size or 192, cache, progress=where["progress"])
        parts.append(AskedPhotographs(pixels, data.captions, entries[split]))
    train, test = parts
    return encoded(train, test, options, cache, where)


def _names_in(path: Path) -> list[str]:
    """Return the lines of a text file that are not blank, without the blanks around them."""
    return [line.strip() for _, line in read_lines(path) if line.strip()]


def _entry(words: list[str], answer: str, photograph: int) -> Entry:
    answer = " ".join(answer.lower().split())  # as the words of a question: Lamp and lamp are one answer
    if not answer:
        raise ValueError("the question has no answer")
    is_color = any(word.startswith(("color", "colour")) for word in words)
    kind = "count" if words[0] == "how" else "color" if is_color else "object"
    return Entry(words, answer, photograph, kind)
