"""VQA v2: questions about photographs of COCO with the answers of ten people, and features of regions from files."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.data.images.image_features import fingerprint_of_files
from experiments.data.places import NEW_COPY, cached_file, first_file, missing, read_arrays
from experiments.data.questions.load import Entry, Questions, Regions, as_questions, question_words
from experiments.data.questions.votes import PEOPLE
from experiments.files import read_packed, reading

_OFFICIAL = "the file of https://visualqa.org/download.html (it is not downloaded)"


def read_vqa_v2(
    root: Path, *, cache: Path | None = None, blind: bool = False, views: int = 1, progress: bool = False
) -> dict[str, Questions]:
    """Load the questions of VQA v2 as "train", "val" and "test".

    The files, in vqa_v2, are the published ones, unpacked or as .json.gz:

        v2_OpenEnded_mscoco_{train2014,val2014}_questions.json
        v2_mscoco_{train2014,val2014}_annotations.json

    The answers of the official test are not published. So half of the validation photographs are for the test, as in
    Deng et al., Latent Alignment and Variational Attention, 2018. An excerpt in the same format may have a test part:
    {train,val,test}_questions.json and {train,val,test}_annotations.json.

    The features of the regions are in vqa_v2/features, see `region_features`. Those of several ``views``, such as
    object detectors, are in vqa_v2/features/1, vqa_v2/features/2, and so on. A ``blind`` network needs no features.

    Source:
        Goyal et al., Making the V in VQA Matter, 2017.
    """
    folder = root / "vqa_v2"
    names = {"train": "train2014", "val": "val2014"}
    is_excerpt = bool([*folder.glob("train_questions.json*")])
    parts = ("train", "val", "test") if is_excerpt else tuple(names)
    questions, widths = dict[str, Questions](), dict[str, int]()
    for part in parts:
        split = part if is_excerpt else names[part]
        names_of_files = (
            (f"{part}_questions.json", f"{part}_annotations.json")
            if is_excerpt
            else (f"v2_OpenEnded_mscoco_{split}_questions.json", f"v2_mscoco_{split}_annotations.json")
        )
        files = [first_file([folder / name, folder / f"{name}.gz"], _OFFICIAL, "vqa_v2") for name in names_of_files]
        entries = read_pairs(*files)
        photographs = sorted({entry.photograph for entry in entries})
        if blind:
            regions = _no_regions(len(photographs), views)
        else:
            of_views = [folder / "features" / str(view) / split for view in range(1, views + 1)]
            folders = of_views if views > 1 else [folder / "features" / split]
            regions = region_features(folders, split, photographs, cache or folder / "cache", progress=progress)
        widths[split] = regions.features.size(-1)
        indices = {number: index for index, number in enumerate(photographs)}
        indexed = [entry._replace(photograph=indices[entry.photograph]) for entry in entries]
        questions[part] = as_questions(part, indexed, regions)
    if len(set(widths.values())) > 1:
        raise ValueError(f"{folder / 'features'}: features of the widths {widths}, expected one width; {NEW_COPY}")
    if not is_excerpt:
        questions["val"], questions["test"] = questions["val"].held_out(0.5, "test")
    return questions


def _no_regions(count: int, views: int) -> Regions:
    shape = (count, views, 1) if views > 1 else (count, 1)
    return Regions(torch.zeros(()).expand(*shape, 1), torch.ones(shape, dtype=torch.bool), (0, 0), Tensor())


def read_pairs(questions: Path, annotations: Path) -> list[Entry]:
    """Read questions and the answers of people; the photograph of an entry is its number in COCO."""
    asked, answered = _by_question(questions, "questions"), _by_question(annotations, "annotations")
    if alone := sorted(asked.keys() ^ answered.keys()):
        has, lacks = (questions, annotations) if alone[0] in asked else (annotations, questions)
        raise ValueError(
            f"question {alone[0]} is in {has} and not in {lacks} ({len(alone)} questions are in one file alone); "
            f"expected files of one split"
        )
    entries = []
    for number, question in asked.items():
        annotation = answered[number]
        with reading(f"{annotations}: question {number}", f"its photograph, and the answers of {PEOPLE} people"):
            if annotation.get("image_id", question["image_id"]) != question["image_id"]:
                raise ValueError(f"another photograph than that of {questions.name}")
            if len(annotation["answers"]) != PEOPLE:
                raise ValueError(f"{len(annotation['answers'])} answers")
            votes = Counter(" ".join(answer.split()) for answer in annotation["answers"])
            kind = str(annotation.get("answer_type", "other"))
            # of equally frequent answers the first in the alphabet
            most = min(votes, key=lambda answer: (-votes[answer], answer))
            entries.append(Entry(question_words(question["question"]), most, question["image_id"], kind, dict(votes)))
    return entries


def _by_question(path: Path, key: str) -> dict[int, Mapping[str, Any]]:
    def answer_alone(record: dict[str, Any]) -> Any:
        """Return the text of an answer; four million answers with number and confidence would fill the memory."""
        return record["answer"] if isinstance(record.get("answer"), str) else record

    with reading(path, f"{key}, a list of objects with different question_id, as JSON"):
        rows = json.loads(read_packed(path), object_hook=answer_alone)[key]
        by_number = {row["question_id"]: row for row in rows}
        if not 0 < len(by_number) == len(rows):
            raise ValueError("it holds no question, or the same question twice")
        return by_number


def region_features(
    folders: Sequence[Path], name: str, photographs: Sequence[int], cache: Path, *, progress: bool = False
) -> Regions:
    """Return the regions of photographs in their order, padded to the largest number of regions.

    A folder has a file for every photograph. The name of a file ends with the photograph's number: 9.npz, 9.npy or
    COCO_train2014_000000000009.jpg.npz. A .npy file is an array [regions, width]; a .npz file has this array as
    `features` or `x`. Boxes (`boxes` or `bbox`, [regions, 4]) only decide whether features are [width, regions], as in
    the files published with MCAN. Several folders hold several views of the photographs, all of one width.

    Other files are not read. Features are stored with 16 bits in one file of the cache under the name, which is mapped
    into memory.
    """
    of_views = [_feature_files(folder, photographs) for folder in folders]
    paths = [path for of_photograph in zip(*of_views, strict=True) for path in of_photograph]
    shape = (len(photographs), len(folders)) if len(folders) > 1 else (len(photographs),)
    key = [name, fingerprint_of_files(paths), *shape[1:]]
    sizes_path = cached_file(
        cache, f"regions-{name}-sizes.npy", key,
        lambda file: np.save(file, [row.shape for row in _rows(paths, f"sizes of {name}", progress)]),
    )  # fmt: skip
    with reading(sizes_path, "an array of numpy without pickles", "remove the file, and it is made again"):
        sizes = np.load(sizes_path, allow_pickle=False)
    most, width = int(sizes[:, 0].max()), int(sizes[0, 1])

    def write(file: IO[bytes]) -> None:
        form = {"descr": "<f2", "fortran_order": False, "shape": (*shape, most, width)}
        np.lib.format.write_array_header_2_0(file, form)
        for row in _rows(paths, f"regions of {name}", progress):
            file.write(np.pad(row.astype("<f2"), ((0, most - len(row)), (0, 0))).tobytes())

    path = cached_file(cache, f"regions-{name}.npy", key, write)
    with reading(path, "an array of numpy without pickles", "remove the file, and it is made again"):
        features = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    mask = torch.arange(most) < torch.from_numpy(sizes[:, :1])
    return Regions(features, mask.reshape(*shape, most), (0, 0), Tensor())


def _feature_files(folder: Path, photographs: Sequence[int]) -> list[Path]:
    """Return the files of features of the photographs, in their order."""
    if not folder.is_dir():
        raise missing(folder, "a folder of features of regions, or --blind to train without them", "vqa_v2")
    matches = {path: re.search(r"(\d+)(?:\.jpg)?\.np[yz]$", path.name) for path in sorted(folder.iterdir())}
    files = {int(match[1]): path for path, match in matches.items() if match}
    if absent := [number for number in photographs if number not in files]:
        raise ValueError(
            f"{folder}: no features of photograph {absent[0]} ({len(absent)} of {len(photographs)} photographs "
            f"have none); expected features of every photograph with a question. Add them, or remove its questions."
        )
    return [files[number] for number in photographs]


def _rows(paths: Sequence[Path], title: str, progress: bool) -> Iterator[np.ndarray]:
    """Yield the features of every photograph, [regions, width]."""
    width = None
    for path in tqdm(paths, title, disable=not progress):
        with reading(path, "finite features [regions, width], of one width in all files", NEW_COPY):
            row = _features(path)
            if row.ndim != 2 or not len(row):
                raise ValueError(f"features {list(row.shape)}")
            width = width or row.shape[1]
            if row.shape[1] != width:
                raise ValueError(f"features of width {row.shape[1]}, and {width} in {paths[0]}")
            if not (np.abs(row) <= np.finfo(np.float16).max).all():  # false for NaN too
                raise ValueError("features are NaN or above 65504")
        yield row


def _features(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        return array
    arrays = read_arrays(path)
    features = arrays["features"] if "features" in arrays else arrays["x"]
    boxes = arrays.get("boxes", arrays.get("bbox"))
    turned = boxes is not None and features.ndim == 2 and len(boxes) == features.shape[1] != len(features)
    return features.T if turned else features
