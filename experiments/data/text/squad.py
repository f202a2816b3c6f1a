"""SQuAD: questions on paragraphs of articles, answered by a span of the paragraph or, in 2.0, by none."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from experiments.data.places import SPLITS, data_folder, missing
from experiments.files import read_packed, reading

SquadVersion = Literal["1.1", "2.0"]

# beginnings of the names of files: the official one, then what takes its place
_NAMES: dict[tuple[SquadVersion, str], tuple[str, ...]] = {
    ("1.1", "train"): ("train-v1.1",),
    ("1.1", "test"): ("dev-v1.1", "dev-v2.0"),
    ("2.0", "train"): ("train-v2.0", "train-v1.1"),
    ("2.0", "test"): ("dev-v2.0",),
}
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
    answers: tuple[Answer, ...]  # what people answered; none where the paragraph holds no answer


def load_squad(
    version: SquadVersion = "1.1",
    *,
    data_root: Path | str | None = None,
    train_file: Path | None = None,
    test_file: Path | None = None,
) -> dict[str, list[Question]]:
    """Load the parts "train", "val" and "test" of SQuAD 1.1 or 2.0; nothing is chosen on "test".

    All parts have whole articles, chosen once and for all. The test part is the development file, as the official test
    part is not public. 1.1 has the questions with an answer alone, also of a file of 2.0. Validation is a tenth of the
    articles of the training file, 16 at most, which the training part is then without.

    Where the training file of 2.0 has no question without an answer, as that of 1.1, all of it is in the training part,
    and the articles of the development file are divided: 3/8 go to the training part, 1/8 are for validation, and the
    test part has the others. Such numbers cannot be compared with those of the whole development file.

    In squad/ lie train-v1.1.json, dev-v1.1.json, train-v2.0.json and dev-v2.0.json, or excerpts, such as
    train-v1.1-small.json, each perhaps packed as .json.gz. Without dev-v1.1 there is dev-v2.0 in its place, and without
    train-v2.0 train-v1.1. Other files may take the place of the training and the test file.

    Source:
        Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016; Rajpurkar et al., Know What
        You Don't Know, 2018.
    """
    folder = data_folder(data_root) / "squad"
    paths = train_file or _find(folder, *_NAMES[version, "train"]), test_file or _find(folder, *_NAMES[version, "test"])
    train, test = (read_squad(path) for path in paths)
    common = {question.id for question in train} & {question.id for question in test}
    if common:
        raise ValueError(f"{paths[1]}: question {min(common)!r} is in {paths[0]} too; expected others than trained on")
    if version == "1.1":
        train, test = ([question for question in part if question.answers] for part in (train, test))
    elif all(question.answers for question in train):
        if all(question.answers for question in test):
            raise ValueError(
                f"{paths[0]} and {paths[1]} have no question without an answer (is_impossible), as those of 2.0 have; "
                f"pass --version 1.1, or other files"
            )
        more, val, test = _divided(test, (3, 1, 4), paths[1])
        return dict(zip(SPLITS, (train + more, val, test), strict=True))
    titles = len({question.title for question in train})
    held_out = min(max(1, titles // 10), 16)
    train, val = _divided(train, (titles - held_out, held_out), paths[0])
    return dict(zip(SPLITS, (train, val, test), strict=True))


def _find(folder: Path, *beginnings: str) -> Path:
    """The first file with one of these beginnings: the official one, or an excerpt."""
    for beginning in beginnings:
        found = [*folder.glob(f"{beginning}.json*"), *sorted(folder.glob(f"{beginning}-*.json*"))]
        if found:
            return found[0]
    official = f"{beginnings[0]}.json"
    address = f"the file of https://rajpurkar.github.io/SQuAD-explorer/dataset/{official} (it is not fetched)"
    raise missing(folder / official, address, "squad")


def _divided(questions: list[Question], shares: Sequence[int], path: Path) -> list[list[Question]]:
    """Questions in parts of whole articles, whose numbers are as these shares; each has an article at least."""
    titles = list(dict.fromkeys(question.title for question in questions))
    if len(titles) < len(shares):
        raise ValueError(f"{path} has {len(titles)} articles that can be used, expected {len(shares)} at least")
    order = torch.randperm(len(titles), generator=torch.Generator().manual_seed(0))
    sizes = [max(1, len(titles) * share // sum(shares)) for share in shares[:-1]]
    parts = [{titles[place] for place in part} for part in order.split([*sizes, len(titles) - sum(sizes)])]
    return [[question for question in questions if question.title in part] for part in parts]


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
