"""VQA v2: questions about photographs of COCO with ten people's answers, and features of regions.

Read are, in vqa_v2, as published (https://visualqa.org/download.html), unpacked or as .json.gz,

    v2_OpenEnded_mscoco_{train,val}2014_questions.json
    v2_mscoco_{train,val}2014_annotations.json

and in vqa_v2/features the features of the regions, train2014 and val2014; `region_files` tells in which formats. As the
answers of the official test are not published, half of the validation photographs are for the test (as in Deng et al.,
Latent Alignment and Variational Attention, 2018).

Source:
    Goyal et al., Making the V in VQA Matter, 2017.
"""

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any

from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.entries import Entry, as_questions, held_out, question_words, read_json_file
from experiments.datasets.questions.photographs import QUESTIONS, PhotographOptions
from experiments.datasets.questions.region_files import region_features
from experiments.files import reading

__all__ = ["read_pairs"]

_QUESTIONS, _ANNOTATIONS = "v2_OpenEnded_mscoco_{}_questions.json", "v2_mscoco_{}_annotations.json"
_ADDRESS = "https://visualqa.org/download.html"


@QUESTIONS.register("vqa_v2")
def read_vqa_v2(root: Path, options: PhotographOptions) -> dict[str, Questions]:
    """Read both published splits; half of the photographs of the second are for the test."""
    folder = root / "vqa_v2"
    cache = options.cache or folder / "cache"
    train, published = (_split(folder, split, cache, options.progress) for split in ("train", "val"))
    val, test = held_out(published, 0.5, "test")
    return {"train": train, "val": val, "test": test}


def _split(folder: Path, split: str, cache: Path, progress: bool) -> Questions:
    files = [_published(folder, name.format(f"{split}2014")) for name in (_QUESTIONS, _ANNOTATIONS)]
    entries = read_pairs(*files)
    photographs = sorted({entry.photograph for entry in entries})
    regions = region_features(folder / "features", f"{split}2014", photographs, cache, progress=progress)
    places = {number: place for place, number in enumerate(photographs)}
    return as_questions(split, [entry._replace(photograph=places[entry.photograph]) for entry in entries], regions)


def _published(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise missing(folder / name, f"the file of this name, or {name}.gz, of {_ADDRESS}", "vqa_v2")


def read_pairs(questions: Path, annotations: Path) -> list[Entry]:
    """Read questions and what people answered; the photograph of an entry is its number in COCO.

    Raises:
        FileNotFoundError, ValueError: a file is missing or damaged, or the two do not go together; the message names
            the question.
    """
    asked = _by_question(questions, "questions")
    answered = _by_question(annotations, "annotations")
    for found, path, others, other in (
        (asked, questions, answered, annotations),
        (answered, annotations, asked, questions),
    ):
        alone = [number for number in found if number not in others]
        if alone:
            raise ValueError(
                f"{path}: question {alone[0]} is not in {other.name} ({len(alone)} of {len(found)} are not). Take both "
                f"files of one split, or remove the question."
            )
    if not asked:
        raise ValueError(f"{questions}: it holds no question. {NEW_COPY}")
    return [
        _entry(question, answered[number], f"{questions}: question {number}", f"{annotations}: question {number}")
        for number, question in asked.items()
    ]


def _by_question(path: Path, key: str) -> dict[int, Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    with reading(path, f"{key}, a list of objects with a question_id"):
        for row in read_json_file(path, _answer_alone)[key]:
            if row["question_id"] in found:
                raise ValueError(f"question {row['question_id']} is there twice; remove one of both")
            found[row["question_id"]] = row
    return found


def _answer_alone(found: dict[str, Any]) -> Any:
    """One person's answer without its number and confidence: four million of them would fill the memory."""
    answer = found.get("answer")
    return sys.intern(answer) if isinstance(answer, str) else found


def _entry(question: Mapping[str, Any], annotation: Mapping[str, Any], asked: str, answered: str) -> Entry:
    with reading(asked, "the number of its photograph as image_id, and a question"):
        photograph, text = question["image_id"], question["question"]
    with reading(answered, "the photograph of the question, and a list of people's answers"):
        if annotation.get("image_id", photograph) != photograph:
            raise ValueError(f"it is about photograph {annotation['image_id']}, the question about {photograph}")
        votes = Counter(annotation["answers"])
        if not votes or not all(isinstance(answer, str) for answer in votes):
            raise ValueError(f"answers are {shown(annotation['answers'])}")
    return Entry(question_words(text, asked), dict(votes), photograph, str(annotation.get("answer_type", "other")))
