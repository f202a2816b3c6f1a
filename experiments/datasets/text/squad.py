"""SQuAD: questions on paragraphs of articles, answered by a span of the paragraph."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.datasets.places import SPLITS, data_folder, missing
from experiments.files import read_packed, reading

_EXPECTED = "a JSON file in the format of SQuAD, which may be packed as .json.gz"


class Answer(NamedTuple):
    """An answer: a text, and the character of the context where it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question on a paragraph."""

    id: str  # its name, of its own in a file
    title: str  # title of the article
    context: str  # the paragraph
    text: str  # the question
    answers: tuple[Answer, ...]  # what people answered; none where the paragraph holds no answer, as from 2.0 on


def load_squad(
    *, data_root: Path | str | None = None, train_file: Path | None = None, test_file: Path | None = None
) -> dict[str, list[Question]]:
    """Load the questions of SQuAD 1.1 that have an answer as "train", "val" and "test"; nothing is chosen on "test".

    All parts have whole articles, chosen once and for all. The test part is the development file, as the official test
    part is not public; it may be that of 2.0. Validation is a tenth of the articles of the training file, 16 at most,
    which the training part is then without.

    In squad/ lie train-v1.1.json and dev-v1.1.json or dev-v2.0.json, or excerpts, such as train-v1.1-small.json, each
    perhaps packed as .json.gz. Other files may take the place of the training and the test file.

    Source:
        Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016.
    """
    folder = data_folder(data_root) / "squad"
    paths = train_file or _find(folder, "train-v1.1"), test_file or _find(folder, "dev-v1.1", "dev-v2.0")
    train, test = ([question for question in read_squad(path) if question.answers] for path in paths)
    common = {question.id for question in train} & {question.id for question in test}
    if common:
        raise ValueError(f"{paths[1]}: question {min(common)!r} is in {paths[0]} too; expected others than trained on")
    titles = list(dict.fromkeys(question.title for question in train))
    if len(titles) < 2:
        raise ValueError(f"{paths[0]} has {len(titles)} articles that can be used, expected 2 at least")
    held_out = min(max(1, len(titles) // 10), 16)
    order = torch.randperm(len(titles), generator=torch.Generator().manual_seed(0)).tolist()
    val = {titles[place] for place in order[len(titles) - held_out :]}
    parts = [[question for question in train if (question.title in val) == held] for held in (False, True)]
    return dict(zip(SPLITS, (*parts, test), strict=True))


def _find(folder: Path, *beginnings: str) -> Path:
    """The first file with one of these beginnings: the official one, or an excerpt."""
    for beginning in beginnings:
        found = [*folder.glob(f"{beginning}.json*"), *sorted(folder.glob(f"{beginning}-*.json*"))]
        if found:
            return found[0]
    official = f"{beginnings[0]}.json"
    address = f"the file of https://rajpurkar.github.io/SQuAD-explorer/dataset/{official} (it is not fetched)"
    raise missing(folder / official, address, "squad")


def read_squad(path: Path, *, answers: bool = True) -> list[Question]:
    """Read a file in the format of SQuAD 1.1 or 2.0; every answer must stand in its context where it says.

    Without `answers` the questions have none, whatever the file says of them.
    """
    with reading(path, _EXPECTED):
        questions = [
            _question(entry, paragraph["context"], article["title"], path, answers)
            for article in json.loads(read_packed(path))["data"]
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
        if not questions:
            raise ValueError("it has no questions")
    twice = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if twice:
        texts = " and ".join(repr(question.text) for question in questions if question.id == twice[0])
        raise ValueError(
            f"{path}: the id {twice[0]!r} belongs to several questions, {texts}; expected another id for every "
            f"question, as predictions are written by id"
        )
    return questions


def _question(entry: dict[str, Any], context: str, title: str, path: Path, with_answers: bool) -> Question:
    with reading(
        f"{path}: question {entry['id']}", "a context, and answers that stand in it", "mend or remove the question"
    ):
        answers = tuple(Answer(one["text"], one["answer_start"]) for one in entry["answers"]) if with_answers else ()
        if not context.strip():
            raise ValueError("the context is empty")
        for text, start in answers:
            if start < 0 or not text or context[start : start + len(text)] != text:
                raise ValueError(f"{text!r} is not at character {start}, but {context[start : start + len(text)]!r}")
        if with_answers and entry.get("is_impossible", False) == bool(answers):
            raise ValueError(f"{len(answers)} answers, and is_impossible is {entry.get('is_impossible')}")
        return Question(entry["id"], title, context, entry["question"], answers)
