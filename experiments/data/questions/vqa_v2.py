"""VQA v2: questions about photographs of COCO with the answers of ten people."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.data.images.regions import Regions, region_features
from experiments.data.questions.load import Entry, Questions, as_questions, question_words
from experiments.data.questions.votes import PEOPLE
from experiments.data.storage import NEW_COPY, first_file
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
