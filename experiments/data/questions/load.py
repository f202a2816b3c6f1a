"""What every set of questions is read into, and questions about photographs by the name of their data set."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from experiments.data.images.captions import CaptionedImages, caption_words, find_images
from experiments.data.images.digit_scenes import cell_positions
from experiments.data.images.image_features import (
    GridEncoder,
    encode_photograph,
    grid_features,
    region_encoder,
    resized_images,
)
from experiments.data.names import RegionOptions
from experiments.data.places import NEW_COPY, data_folder, first_file, read_arrays
from experiments.files import reading
from pyro_attention.registry import Registry

_SPREAD_OF = 2**28  # numbers at most, that a standard deviation is computed of


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of photographs."""

    features: Tensor  # ``[photographs, N, F]``, or ``[photographs, views, N, F]`` where several detectors have looked
    mask: Tensor  # True at regions, False at padding; shaped like the features without their width
    grid: tuple[int, int]  # number of rows and of columns
    pictures: Tensor  # pixels for drawing, [photographs, height, width] or [photographs, 3, height, width]
    encoder: GridEncoder | None = None  # what made the features of the pictures; None where it is not at hand

    def __len__(self) -> int:
        return len(self.features)

    @property
    def spread(self) -> float:
        """Standard deviation of the features; of so many that they fill more than 1 GB, that of some photographs."""
        most = max(1, len(self) * _SPREAD_OF // max(1, self.features.numel()))
        places = torch.linspace(0, len(self) - 1, most).long() if most < len(self) else slice(None)
        return self.features[places][self.mask[places]].float().std().item()


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions, their answers, and the regions that they are about."""

    name: str  # name of the data set
    questions: Sequence[Sequence[str]]  # words of every question
    answers: Sequence[str]  # answer to every question
    photographs: Tensor  # ``[questions]``, place of every question's photograph in the regions
    regions: Regions  # the regions of all photographs
    kinds: Sequence[str]  # kind of every question, such as "count"; results are told by kind
    relevant: Tensor | None = None  # ``[questions, N]`` bool, the regions that one has to look at, where known
    votes: Sequence[Mapping[str, int]] | None = None  # how many people gave each answer, where several were asked

    def __len__(self) -> int:
        return len(self.questions)

    def pick(self, places: Sequence[int]) -> Questions:
        """Return the questions at some places, about the same photographs."""
        chosen = torch.as_tensor(places, dtype=torch.long)
        return replace(
            self,
            questions=[self.questions[place] for place in places],
            answers=[self.answers[place] for place in places],
            photographs=self.photographs[chosen],
            kinds=[self.kinds[place] for place in places],
            relevant=None if self.relevant is None else self.relevant[chosen],
            votes=None if self.votes is None else [self.votes[place] for place in places],
        )

    def of_kinds(self, kinds: Sequence[str]) -> Questions:
        """Return the questions of some kinds."""
        return self.pick([place for place, kind in enumerate(self.kinds) if kind in kinds])

    def held_out(self, share: float, name: str) -> tuple[Questions, Questions]:
        """Part the questions by photograph, the same ones every time: the rest, and those about the share held out."""
        count = len(self.regions)
        if count < 2:
            raise ValueError(f"{self.name}: {count} photograph; expected two at least, of which one is held out")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        is_held = torch.zeros(count, dtype=torch.bool)
        is_held[order[: max(1, round(share * count))]] = True
        asked = is_held[self.photographs]
        kept, held = ((asked == value).nonzero().flatten().tolist() for value in (False, True))
        return self.pick(kept), replace(self.pick(held), name=name)


class Entry(NamedTuple):
    """A question: its words, its answer, the place of its photograph, its kind, and the votes of several people."""

    words: list[str]
    answer: str
    photograph: int
    kind: str
    votes: Mapping[str, int] | None = None


def question_words(text: str) -> list[str]:
    """Return the words of a question: in small letters, without punctuation; ValueError without any."""
    if not (words := caption_words(text)):
        raise ValueError(f"the question is {text!r}; expected a text with a word")
    return words


def as_questions(name: str, entries: Sequence[Entry], regions: Regions) -> Questions:
    """Return questions in their order."""
    words, answers, photographs, kinds, votes = zip(*entries, strict=True)
    several = None if None in votes else votes
    return Questions(name, words, answers, torch.tensor(photographs), regions, kinds, votes=several)


# From the folder of the data sets, how photographs become regions, and device and progress, to the splits.
QUESTIONS: Registry[Callable[[Path, RegionOptions, dict[str, Any]], dict[str, Questions]]] = Registry(
    "data set of questions"
)


def load_photo_questions(
    name: str, options: RegionOptions, *, data_root: Path | None = None, **where: Any
) -> dict[str, Questions]:
    """Load the splits "train", "val" and "test" of a data set; photographs are encoded once, and kept on disk.

    Files are described at the reader of the data set; ``where`` are the device and whether to show progress.
    """
    return QUESTIONS[name](data_folder(data_root), options, {"device": "cpu", "progress": False} | where)


class AskedPhotographs(NamedTuple):
    """Photographs of a split, and what is asked about them."""

    pixels: Tensor  # [photographs, 3, height, width] uint8
    captions: Sequence[Sequence[str]]  # what the own encoder learns of every photograph; none of the others
    entries: Sequence[Entry]  # the questions


def encoded(
    train: AskedPhotographs, test: AskedPhotographs, options: RegionOptions, cache: Path, where: dict[str, Any]
) -> dict[str, Questions]:
    """Hold out a tenth of the training photographs for validation, and encode all photographs.

    The own encoder sees the other training photographs only.
    """
    # the split, ahead of any features
    nothing = Regions(torch.zeros(len(train.pixels), 1), torch.zeros(0), (1, 1), torch.zeros(0))
    kept, held = as_questions("train", train.entries, nothing).held_out(0.1, "val")
    seen = [place for place in kept.photographs.unique().tolist() if train.captions[place]]
    encoder = region_encoder(options, train.pixels[seen], [train.captions[place] for place in seen], cache, **where)
    shared, others = (
        _cells(encoder, grid_features(encoder, part.pixels, cache, **where), part.pixels) for part in (train, test)
    )
    tested = as_questions("test", test.entries, others)
    return {"train": replace(kept, regions=shared), "val": replace(held, regions=shared), "test": tested}


def regions_of(image: Image.Image, like: Regions, *, device: torch.device | str = "cpu") -> Regions:
    """Return the regions of one more photograph, made by what made those of others; it is shown in its own shape."""
    if like.encoder is None:
        raise ValueError("the regions were not made here of photographs, so those of another one cannot be made either")
    features, picture = encode_photograph(like.encoder, image, like.pictures.size(-1), device=device)
    return _cells(like.encoder, features, picture[None])


def _cells(encoder: GridEncoder, features: Tensor, pictures: Tensor) -> Regions:
    grid = (math.isqrt(features.size(1)),) * 2
    places = cell_positions(grid).to(features.dtype).expand(len(features), -1, -1)
    features = torch.cat([features, places], -1)
    return Regions(features, torch.ones(features.shape[:2], dtype=torch.bool), grid, pictures, encoder)


@QUESTIONS.register("easy_vqa")
def read_easy_vqa(root: Path, options: RegionOptions, where: dict[str, Any]) -> dict[str, Questions]:
    """easy-VQA: questions about pictures of one coloured shape, 64 x 64 pixels.

    Read are, in easy-vqa, {train,test}_images.npz (`images`, [pictures, 64, 64, 3] uint8), {train,test}_questions.json
    (a list of [question, answer, place of the picture]) and answers.txt. A tenth of the training pictures is for
    validation.

    Source:
        Zhou, easy-VQA, 2019 (https://github.com/vzhou842/easy-VQA).
    """
    folder = root / "easy-vqa"
    path = first_file([folder / "answers.txt"], "the files of https://github.com/vzhou842/easy-VQA", "easy-vqa")
    with reading(path, "a list of answers"):
        answers = frozenset(path.read_text(encoding="utf-8").split())
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
    entries, told = [], [set[str]() for _ in pixels]
    for number, row in enumerate(rows, 1):
        with reading(f"{path}: question {number}", "[question, answer, place of the picture]", "mend or remove it"):
            question, answer, picture = row
            if answer not in answers or not 0 <= picture < len(pixels):
                raise ValueError(f"an answer not in answers.txt, or no picture of {len(pixels)}")
            words = question_words(question)
            kind = "exists" if words[0] != "what" else "color" if "color" in words else "shape"
            entries.append(Entry(words, answer, picture, kind))
            told[picture] |= _affirmed(words, answer, answers)
    return AskedPhotographs(pixels, [[" ".join(sorted(words))] if words else [] for words in told], entries)


def _affirmed(words: list[str], answer: str, answers: Set[str]) -> set[str]:
    """What a question and its answer say that the picture has: "red" of "is there a red shape", "yes"."""
    if answer not in ("yes", "no"):
        return {answer}
    is_denial = not {"not", "no"}.isdisjoint(words)
    return set(words) & answers - {"yes", "no"} if (answer == "yes") != is_denial else set()


@QUESTIONS.register("daquar")
def read_daquar(root: Path, options: RegionOptions, where: dict[str, Any]) -> dict[str, Questions]:
    """DAQUAR: questions about 1449 photographs of rooms (NYU Depth v2), each answered by one person.

    Read are, in daquar or daquar/text, data.csv (question,answer,image_id) with train_images_list.txt and
    test_images_list.txt. Photographs are image1.png or .jpg and so on in daquar/images, or else in the uncompressed
    archive daquar/images160.tar. A tenth of the training photographs is for validation.

    An answer of several things ("table, chair") is one class, as it is written, and accuracy asks for it word for word.
    WUPS, which the authors report too, is not computed: it needs WordNet, which is a download of its own.

    Source:
        Malinowski and Fritz, A Multi-World Approach to Question Answering about Real-World Scenes, 2014.
    """
    folder = root / "daquar"
    cache = options.cache or folder / "cache"
    path = first_file([text / "data.csv" for text in (folder / "text", folder)], "it with lists of images", "daquar")
    found = find_images([folder / "images"], folder / "images160.tar", "photographs image1.png and so on")
    photographs = {Path(name).stem: file for name, file in found.items()}
    split_of = {
        name: split
        for split in ("train", "test")
        for name in path.with_name(f"{split}_images_list.txt").read_text(encoding="utf-8").split()
    }
    entries: dict[str, list[Entry]] = {"train": [], "test": []}
    answers: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 1):
            with reading(f"{path}: question {number}", "question,answer,image_id, of a listed image", "mend it"):
                name, split = row["image_id"], split_of[row["image_id"]]
                answers[split].setdefault(name, []).append(row["answer"])
                place = list(answers[split]).index(name)
                entries[split].append(_entry(question_words(row["question"]), row["answer"], place))
    parts = []
    for split, about in answers.items():
        absent = [name for name in about if name not in photographs]
        if absent or not about:
            raise ValueError(f"{path}: no photograph {', '.join(absent)}, or no question to {split}; {NEW_COPY}")
        data = CaptionedImages([photographs[name] for name in about], list(about.values()), "daquar", split)
        pixels = resized_images(data, options.size or 192, cache, progress=where["progress"])
        parts.append(AskedPhotographs(pixels, data.captions, entries[split]))
    train, test = parts
    return encoded(train, test, options, cache, where)


def _entry(words: list[str], answer: str, photograph: int) -> Entry:
    answer = " ".join(answer.split())
    if not answer:
        raise ValueError("the question has no answer")
    is_color = any(word.startswith(("color", "colour")) for word in words)
    kind = "count" if words[0] == "how" else "color" if is_color else "object"
    return Entry(words, answer, photograph, kind)
