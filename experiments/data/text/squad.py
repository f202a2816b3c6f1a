"""SQuAD: questions on paragraphs of articles, whose answer is a span of the paragraph or, in 2.0, missing."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from experiments.data.storage import SPLITS, data_folder, missing
from experiments.files import check_characters, read_packed, reading

SquadVersion = Literal["1.1", "2.0"]

# beginnings of the names of files: the official file, then its substitute
_NAMES: dict[tuple[SquadVersion, str], tuple[str, ...]] = {
    ("1.1", "train"): ("train-v1.1",),
    ("1.1", "test"): ("dev-v1.1", "dev-v2.0"),
    ("2.0", "train"): ("train-v2.0", "train-v1.1"),
    ("2.0", "test"): ("dev-v2.0",),
}
_EXPECTED = "a JSON file in the format of SQuAD, which may be packed as .json.gz"


class Answer(NamedTuple):
    """Answer to a question.

    Attributes:
        text: The answer.
        start: Character of the context where the answer begins.
    """

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """Question on a paragraph.

    Attributes:
        id: Name of the question, which is unique in a file.
        title: Title of the article.
        context: The paragraph.
        text: The question.
        answers: Answers that people gave; none if the paragraph has no answer.
    """

    id: str
    title: str
    context: str
    text: str
    answers: tuple[Answer, ...]


def load_squad(
    version: SquadVersion = "1.1",
    *,
    data_root: Path | str | None = None,
    train_file: Path | None = None,
    test_file: Path | None = None,
) -> dict[str, list[Question]]:
    """Load the parts "train", "val" and "test" of SQuAD 1.1 or 2.0.

    All parts have whole articles, the same ones in every run, and nothing is chosen on "test". The test part is the
    development file, since the official test part is not public. The validation part has a tenth of the articles of the
    training file, at most 16, and the training part has the other articles. Version 1.1 has only questions with an
    answer, also from a file of 2.0.

    If the training file of 2.0 has only questions with an answer, as that of 1.1, all of it is in the training part.
    The articles of the development file are then divided: 3/8 are added to the training part, 1/8 are for validation,
    and the others are for the test. Such scores cannot be compared with those on the whole development file.

    The files are train-v1.1.json, dev-v1.1.json, train-v2.0.json and dev-v2.0.json in squad/, or excerpts such as
    train-v1.1-small.json, which may be packed as .json.gz. dev-v2.0 replaces a missing dev-v1.1, and train-v1.1 a
    missing train-v2.0.

    Args:
        version: "1.1" or "2.0".
        data_root: Folder of the data sets.
        train_file: Another training file.
        test_file: Another test file.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The files share a question, do not fit the version, or have too few articles.
        DamagedFileError: A file has other content.

    Source:
        Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016; Rajpurkar et al., Know What
        You Don't Know, 2018.
    """
    folder = data_folder(data_root) / "squad"
    train_path = train_file or _find_file(folder, *_NAMES[version, "train"])
    paths = train_path, test_file or _find_file(folder, *_NAMES[version, "test"])
    train, test = (read_squad(path) for path in paths)
    common = {question.id for question in train} & {question.id for question in test}
    if common:
        raise ValueError(
            f"{paths[1]}: question {min(common)!r} is in {paths[0]} too; expected a test file without training "
            "questions"
        )
    if version == "1.1":
        train, test = ([question for question in part if question.answers] for part in (train, test))
    elif all(question.answers for question in train):
        if all(question.answers for question in test):
            raise ValueError(
                f"{paths[0]} and {paths[1]} have no question without an answer (is_impossible), as those of 2.0 have; "
                f"pass --version 1.1, or other files"
            )
        further, val, test = _divide_articles(test, (3, 1, 4), paths[1])
        return dict(zip(SPLITS, (train + further, val, test), strict=True))
    titles = len({question.title for question in train})
    held_out = min(max(1, titles // 10), 16)
    train, val = _divide_articles(train, (titles - held_out, held_out), paths[0])
    return dict(zip(SPLITS, (train, val, test), strict=True))


def load_unanswerable(*, data_root: Path | str | None = None, test_file: Path | None = None) -> list[Question]:
    """Load the questions of the development file of SQuAD 2.0 whose paragraph has no answer.

    Args:
        data_root: Folder of the data sets.
        test_file: Another file of 2.0.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: All of its questions have an answer.
        DamagedFileError: The file has other content.
    """
    path = test_file or _find_file(data_folder(data_root) / "squad", *_NAMES["2.0", "test"])
    questions = [question for question in read_squad(path) if not question.answers]
    if not questions:
        raise ValueError(
            f"{path} has no question without an answer (is_impossible); expected the development file of SQuAD 2.0"
        )
    return questions


def _find_file(folder: Path, *beginnings: str) -> Path:
    """Return the first file with one of these beginnings, the official file or an excerpt."""
    for beginning in beginnings:
        paths = [*folder.glob(f"{beginning}.json*"), *sorted(folder.glob(f"{beginning}-*.json*"))]
        if paths:
            return paths[0]
    official = f"{beginnings[0]}.json"
    address = f"the file of https://rajpurkar.github.io/SQuAD-explorer/dataset/{official} (it is not fetched)"
    raise missing(folder / official, address, "squad")


def _divide_articles(questions: list[Question], shares: Sequence[int], path: Path) -> list[list[Question]]:
    """Divide questions into parts of whole articles in the proportion of the shares, with at least one article each."""
    titles = list(dict.fromkeys(question.title for question in questions))
    if len(titles) < len(shares):
        raise ValueError(f"{path} has {len(titles)} usable articles, expected at least {len(shares)}")
    order = torch.randperm(len(titles), generator=torch.Generator().manual_seed(0))
    sizes = [max(1, len(titles) * share // sum(shares)) for share in shares[:-1]]
    parts = [{titles[index] for index in part} for part in order.split([*sizes, len(titles) - sum(sizes)])]
    return [[question for question in questions if question.title in part] for part in parts]


def read_squad(path: Path, *, answers: bool = True) -> list[Question]:
    """Read a file in the format of SQuAD 1.1 or 2.0, and check that every answer is in its context.

    Args:
        path: The file.
        answers: Read the answers; otherwise the questions have none.

    Raises:
        DamagedFileError: The file is missing, or has other content.
        ValueError: An id belongs to several questions.
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
    repeated = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if repeated:
        texts = " and ".join(repr(question.text) for question in questions if question.id == repeated[0])
        raise ValueError(
            f"{path}: the id {repeated[0]!r} belongs to several questions, {texts}; expected another id for every "
            f"question, as predictions are written by id"
        )
    return questions


def _question(entry: dict[str, Any], context: str, title: str, path: Path, with_answers: bool) -> Question:
    with reading(
        f"{path}: question {entry['id']}",
        "a context, and answers that are in it, or none of them and is_impossible true",
        "correct or remove the question",
    ):
        entries = entry["answers"] if with_answers else ()
        answers = tuple(Answer(answer["text"], answer["answer_start"]) for answer in entries)
        check_characters(str(entry["id"]), context, entry["question"])
        if not context.strip():
            raise ValueError("the context is empty")
        for text, start in answers:
            if start < 0 or not text or context[start : start + len(text)] != text:
                raise ValueError(f"{text!r} is not at character {start}, but {context[start : start + len(text)]!r}")
        impossible = entry.get("is_impossible", False)
        if with_answers and (not isinstance(impossible, bool) or impossible == bool(answers)):
            raise ValueError(f"{len(answers)} answers, and is_impossible is {entry.get('is_impossible')!r}")
        return Question(entry["id"], title, context, entry["question"], answers)
