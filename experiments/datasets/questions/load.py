"""Questions about photographs, by the name of their data set; regions are cells of a grid, or are read from files."""

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from tqdm import tqdm

from experiments.datasets.arrays import cached_array, map_array, read_arrays
from experiments.datasets.images.captions import CaptionedImages, find_images
from experiments.datasets.images.image_features import (
    GridEncoder,
    content_encoder,
    encode_photograph,
    files_fingerprint,
    grid_features,
    mobilenet_grid,
    resized_images,
)
from experiments.datasets.places import NEW_COPY, data_folder, first_file, missing
from experiments.datasets.questions.data import Entry, Questions, Regions, as_questions, cell_positions, question_words
from experiments.files import read_packed, reading
from pyro_attention.registry import Registry


@dataclass(frozen=True, kw_only=True)
class PhotographOptions:
    """How photographs become regions."""

    encoder: Literal["own", "mobilenet_v2"] = "own"  # own is trained to tell from a photograph which answers it has
    weights: Path | None = None  # of mobilenet_v2, see `mobilenet_grid`
    size: int | None = None  # side in pixels that photographs are brought to; each data set has its own when omitted
    epochs: int = 15  # epochs of the own encoder
    train: bool = True  # train the own encoder where the cache has none; else that is an error
    cache: Path | None = None  # folder of pixels and features; "cache" in the data set's folder when omitted
    device: torch.device | str = "cpu"  # where to compute features
    progress: bool = False  # show progress bars


# From the folder of the data sets, and how photographs become regions, to "train", "val" and "test".
QUESTIONS: Registry[Callable[[Path, PhotographOptions], dict[str, Questions]]] = Registry("data set of questions")


def load_photo_questions(
    name: str, options: PhotographOptions, *, data_root: Path | str | None = None
) -> dict[str, Questions]:
    """Load the splits "train", "val" and "test" of a data set; photographs are encoded once, and kept on disk.

    Files are described at the reader of the data set.
    """
    return QUESTIONS[name](data_folder(data_root), options)


# Photographs that are encoded


class AskedPhotographs(NamedTuple):
    """Photographs of a split, and what is asked about them.

    Attributes:
        captions: what is known of every photograph, for the own encoder to learn; none of those it is not trained on.
    """

    pixels: Tensor  # [photographs, 3, height, width] uint8
    captions: Sequence[Sequence[str]]
    entries: Sequence[Entry]  # the questions


def encoded(
    train: AskedPhotographs, test: AskedPhotographs, options: PhotographOptions, cache: Path
) -> dict[str, Questions]:
    """Hold out a tenth of the training photographs for validation, and encode all photographs.

    The own encoder sees the other training photographs only.
    """
    # the split, ahead of any features
    plain = as_questions("train", train.entries, Regions(torch.zeros(len(train.pixels), 1), torch.zeros(0)))
    kept, held = plain.held_out(0.1, "val")
    if options.encoder == "mobilenet_v2":
        encoder = mobilenet_grid(options.weights)
    else:
        seen = [place for place in kept.photographs.unique().tolist() if train.captions[place]]
        encoder = content_encoder(
            train.pixels[seen], [train.captions[place] for place in seen], cache,
            epochs=options.epochs, device=options.device, progress=options.progress, train=options.train,
        )  # fmt: skip

    def regions(pixels: Tensor) -> Regions:
        features = grid_features(encoder, pixels, cache, device=options.device, progress=options.progress)
        return _cells(encoder, features, pixels)

    shared = regions(train.pixels)
    tested = as_questions("test", test.entries, regions(test.pixels))
    return {"train": replace(kept, regions=shared), "val": replace(held, regions=shared), "test": tested}


def regions_of(image: Image.Image, like: Regions, *, device: torch.device | str = "cpu") -> Regions:
    """Return the regions of one more photograph, made by what made those of others; it is shown in its own shape."""
    if like.encoder is None or like.pictures is None:
        raise ValueError("the regions were not made here of photographs, so those of another one cannot be made either")
    features, picture = encode_photograph(like.encoder, image, like.pictures.size(-1), device=device)
    return _cells(like.encoder, features, picture[None])


def _cells(encoder: GridEncoder, features: Tensor, pictures: Tensor) -> Regions:
    grid = (math.isqrt(features.size(1)),) * 2
    places = cell_positions(grid).to(features.dtype).expand(len(features), -1, -1)
    features = torch.cat([features, places], -1)
    return Regions(features, torch.ones(features.shape[:2], dtype=torch.bool), grid, pictures, encoder)


@QUESTIONS.register("easy_vqa")
def read_easy_vqa(root: Path, options: PhotographOptions) -> dict[str, Questions]:
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
    return encoded(train, test, options, options.cache or folder / "cache")


def _easy_split(folder: Path, split: str, answers: Set[str], size: int | None) -> AskedPhotographs:
    path = folder / f"{split}_images.npz"
    with reading(path, "images, uint8 [pictures, height, width, 3]"):
        pixels = torch.from_numpy(read_arrays(path)["images"]).permute(0, 3, 1, 2).contiguous()
    if size is not None and pixels.shape[2:] != (size, size):
        pixels = interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    path = folder / f"{split}_questions.json"
    entries, told = [], [set[str]() for _ in pixels]
    for number, row in enumerate(_read_json(path), 1):
        with reading(f"{path}: question {number}", "[question, answer, place of the picture]", "mend or remove it"):
            question, answer, picture = row
            if answer not in answers or not 0 <= picture < len(pixels):
                raise ValueError(f"an answer not in answers.txt, or no picture of {len(pixels)}")
            words = question_words(question)
            kind = "exists" if words[0] != "what" else "color" if "color" in words else "shape"
            entries.append(Entry(words, {answer: 1}, picture, kind))
            told[picture] |= _affirmed(words, answer, answers)
    return AskedPhotographs(pixels, [[" ".join(sorted(words))] if words else [] for words in told], entries)


def _affirmed(words: list[str], answer: str, answers: Set[str]) -> set[str]:
    """What a question and its answer say that the picture has: "red" of "is there a red shape", "yes"."""
    if answer not in ("yes", "no"):
        return {answer}
    is_denial = not {"not", "no"}.isdisjoint(words)
    return set(words) & answers - {"yes", "no"} if (answer == "yes") != is_denial else set()


def _read_json(path: Path, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """What is in a JSON file, which may be packed (.gz); the hook makes something smaller of every object."""
    with reading(path, "an intact JSON file"):
        return json.loads(read_packed(path), object_hook=object_hook)


@QUESTIONS.register("daquar")
def read_daquar(root: Path, options: PhotographOptions) -> dict[str, Questions]:
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
        pixels = resized_images(data, options.size or 192, cache, progress=options.progress)
        parts.append(AskedPhotographs(pixels, data.captions, entries[split]))
    train, test = parts
    return encoded(train, test, options, cache)


def _entry(words: list[str], answer: str, photograph: int) -> Entry:
    answer = " ".join(answer.split())
    if not answer:
        raise ValueError("the question has no answer")
    is_color = any(word.startswith(("color", "colour")) for word in words)
    kind = "count" if words[0] == "how" else "color" if is_color else "object"
    return Entry(words, {answer: 1}, photograph, kind)


# Photographs whose regions are in files


@QUESTIONS.register("vqa_v2")
def read_vqa_v2(root: Path, options: PhotographOptions) -> dict[str, Questions]:
    """VQA v2: questions about photographs of COCO with ten people's answers, and features of regions.

    Read are, in vqa_v2, as published (https://visualqa.org/download.html), unpacked or as .json.gz,

        v2_OpenEnded_mscoco_{train,val}2014_questions.json
        v2_mscoco_{train,val}2014_annotations.json

    and in vqa_v2/features the features of the regions, train2014 and val2014, see `region_features`. As the
    answers of the official test are not published, half of the validation photographs are for the test (as in Deng et
    al., Latent Alignment and Variational Attention, 2018).

    Source:
        Goyal et al., Making the V in VQA Matter, 2017.
    """
    folder = root / "vqa_v2"
    cache = options.cache or folder / "cache"
    found = []
    for split in ("train2014", "val2014"):
        names = f"v2_OpenEnded_mscoco_{split}_questions.json", f"v2_mscoco_{split}_annotations.json"
        files = [
            first_file([folder / name, folder / f"{name}.gz"], "that of https://visualqa.org/download.html", "vqa_v2")
            for name in names
        ]
        entries = read_pairs(*files)
        photographs = sorted({entry.photograph for entry in entries})
        regions = region_features(folder / "features", split, photographs, cache, progress=options.progress)
        places = {number: place for place, number in enumerate(photographs)}
        placed = [entry._replace(photograph=places[entry.photograph]) for entry in entries]
        found.append(as_questions(split.removesuffix("2014"), placed, regions))
    val, test = found[1].held_out(0.5, "test")
    return {"train": found[0], "val": val, "test": test}


def read_pairs(questions: Path, annotations: Path) -> list[Entry]:
    """Read questions and what people answered; the photograph of an entry is its number in COCO."""
    asked, answered = _by_question(questions, "questions"), _by_question(annotations, "annotations")
    alone = sorted(asked.keys() ^ answered.keys())
    if alone:
        raise ValueError(f"question {alone[0]} is in one of {questions} and {annotations}; expected files of one split")
    entries = []
    for number, question in asked.items():
        annotation = answered[number]
        with reading(f"{annotations}: question {number}", "the photograph of the question, and people's answers"):
            if annotation.get("image_id", question["image_id"]) != question["image_id"]:
                raise ValueError(f"another photograph than that of {questions.name}")
            votes, kind = Counter(annotation["answers"]), str(annotation.get("answer_type", "other"))
            entries.append(Entry(question_words(question["question"]), dict(votes), question["image_id"], kind))
    return entries


def _by_question(path: Path, key: str) -> dict[int, Mapping[str, Any]]:
    # one person's answer without its number and confidence: four million of them would fill the memory
    rows = _read_json(path, lambda found: found["answer"] if isinstance(found.get("answer"), str) else found)
    with reading(path, f"{key}, a list of objects with a question_id, each once"):
        found = {row["question_id"]: row for row in rows[key]}
        if not 0 < len(found) == len(rows[key]):
            raise ValueError("it holds no question, or one twice")
        return found


def region_features(
    folder: Path, split: str, photographs: Sequence[int], cache: Path, *, progress: bool = False
) -> Regions:
    """Return the regions of photographs in their order; those with fewer regions are padded.

    For every split, such as train2014, there is in the folder of features a folder of this name with a file of every
    photograph, whose name ends with the photograph's number: 9.npz, 9.npy or COCO_train2014_000000000009.jpg.npz. The
    .npy is an array [regions, width]; the .npz has it as `features` or `x`. Boxes (`boxes` or `bbox`, [regions, 4])
    only tell whether features are [width, regions], as in the files published with MCAN.

    Photographs that no question is about are not read. Kept features have 16 bits.
    """
    if not (folder / split).is_dir():
        raise missing(folder / split, "a folder of features of regions", "vqa_v2")
    matches = {path: re.search(r"(\d+)(?:\.jpg)?\.np[yz]", path.name) for path in sorted((folder / split).iterdir())}
    files = {int(match[1]): path for path, match in matches.items() if match}
    absent = [number for number in photographs if number not in files]
    if absent:
        raise ValueError(
            f"{folder / split}: no features of photograph {absent[0]} ({len(absent)} of {len(photographs)} photographs "
            f"have none); expected those of every photograph with a question. Add them, or remove its questions."
        )

    widths = set[int]()

    def rows() -> Iterator[np.ndarray]:
        for number in tqdm(photographs, f"regions of {split}", disable=not progress):
            with reading(files[number], "finite features [regions, width]", NEW_COPY):
                row = _regions(files[number])
                widths.add(row.shape[-1])
                if row.ndim != 2 or not len(row) or len(widths) > 1:
                    raise ValueError(f"features {list(row.shape)}, widths {widths}")
                if not (np.abs(row) <= np.finfo(np.float16).max).all():  # not of NaN either
                    raise ValueError("features are NaN or above 65504")
            yield row

    paths = [files[number] for number in photographs]
    key = {"split": split, "files": files_fingerprint(paths, [path.name for path in paths])}
    count = len(photographs)
    sizes = cached_array(cache, f"regions-{split}-sizes", key, count, lambda: (np.array([len(row)]) for row in rows()))
    most = int(sizes.max())

    def features() -> Iterator[np.ndarray]:
        for row in rows():
            yield np.pad(row.astype(np.float16), ((0, most - len(row)), (0, 0)))[None]

    found = cached_array(cache, f"regions-{split}", key, count, features)
    return Regions(found, torch.arange(most) < sizes.unsqueeze(-1))


def _regions(path: Path) -> np.ndarray:
    """The features of a photograph, [regions, width]."""
    if path.suffix == ".npy":
        return map_array(path)
    arrays = read_arrays(path)
    found = arrays["features"] if "features" in arrays else arrays["x"]
    boxes = arrays.get("boxes", arrays.get("bbox"))
    turned = boxes is not None and found.ndim == 2 and len(boxes) == found.shape[1] != len(found)
    return found.T if turned else found
