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
from typing import Any

from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.questions.data import Questions
from experiments.datasets.questions.entries import Entry, as_questions, held_out, question_words, read_json_file
from experiments.datasets.questions.photographs import QUESTIONS, PhotographOptions
from experiments.datasets.questions.region_files import region_features
from experiments.datasets.untrusted import is_there, shown

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
        if is_there(path):
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
    content = read_json_file(path, _answer_alone)
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: {key} is {shown(rows)}; expected a list. {NEW_COPY}")
    found: dict[int, Mapping[str, Any]] = {}
    for place, row in enumerate(rows, 1):
        number = row.get("question_id") if isinstance(row, dict) else None
        if not isinstance(number, int):
            raise ValueError(
                f"{path}: entry {place} of {key} has the question_id {shown(number)}; expected a number. {NEW_COPY}"
            )
        if number in found:
            raise ValueError(f"{path}: question {number} is there twice. Remove one of both.")
        found[number] = row
    return found


def _answer_alone(found: dict[str, Any]) -> Any:
    """One person's answer without its number and confidence: four million of them would fill the memory."""
    answer = found.get("answer")
    return sys.intern(answer) if isinstance(answer, str) else found


def _entry(question: Mapping[str, Any], annotation: Mapping[str, Any], asked: str, answered: str) -> Entry:
    photograph = question.get("image_id")
    if not isinstance(photograph, int):
        raise ValueError(f"{asked}: image_id is {shown(photograph)}; expected a number. {NEW_COPY}")
    if annotation.get("image_id", photograph) != photograph:
        seen = shown(annotation["image_id"])
        raise ValueError(f"{answered}: it is about photograph {seen}, the question about {photograph}. {NEW_COPY}")
    answers = annotation.get("answers")
    if not (isinstance(answers, list) and answers and all(isinstance(answer, str) for answer in answers)):
        raise ValueError(f"{answered}: answers are {shown(answers)}; expected a list of people's answers. {NEW_COPY}")
    words = question_words(question.get("question"), asked)
    return Entry(words, dict(Counter(answers)), photograph, str(annotation.get("answer_type", "other")))
