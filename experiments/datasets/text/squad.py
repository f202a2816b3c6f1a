"""SQuAD: questions on paragraphs of articles, answered by a span of the paragraph or, from 2.0 on, by none."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from experiments.datasets.places import NEW_COPY, data_folder, missing
from experiments.datasets.untrusted import is_there, read_bytes, shown, unpacked
from experiments.files import MOST_JSON_BYTES

__all__ = ["Answer", "Question", "SquadName", "load_squad", "read_squad"]

SquadName = Literal["v1", "v2"]
T = TypeVar("T", dict[str, Any], list[Any], str, int)

MOST_HELD_OUT = 16  # articles for validation
_EXPECTED = "a JSON file in the format of SQuAD, which may be packed as .json.gz"
# Beginnings of file names: the official one, then what takes its place.
_NAMES: dict[tuple[SquadName, str], tuple[str, ...]] = {
    ("v1", "train"): ("train-v1.1",),
    ("v1", "test"): ("dev-v1.1", "dev-v2.0"),
    ("v2", "train"): ("train-v2.0", "train-v1.1"),
    ("v2", "test"): ("dev-v2.0",),
}


class Answer(NamedTuple):
    """An answer: a text, and the character of the context where it begins."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question on a paragraph.

    Args:
        id: its name, of its own in a file.
        title: title of the article.
        context: the paragraph.
        text: the question.
        answers: what people answered; none where the paragraph holds no answer.
    """

    id: str
    title: str
    context: str
    text: str
    answers: tuple[Answer, ...]


def load_squad(
    name: SquadName,
    *,
    data_root: Path | str | None = None,
    train_file: Path | None = None,
    test_file: Path | None = None,
) -> dict[str, list[Question]]:
    """Load SQuAD 1.1 or 2.0; all parts have whole articles, chosen once and for all, and nothing is chosen on "test".

    The test part is the development file, as the official test part is not public. "v1" has the questions with an
    answer alone, also of a file of 2.0. Validation is a tenth of the articles of the training file, 16 at most, which
    the training part is then without.

    Where the training file of "v2" has no question without an answer, as that of 1.1, all of it is in the training
    part, and the articles of the development file are divided: 3/8 go to the training part, 1/8 are for validation,
    and the test part has the others. Such numbers cannot be compared with those of the whole development file.

    Args:
        name: v1, SQuAD 1.1, or v2, SQuAD 2.0.
        data_root: folder that holds squad/; by default $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention. There lie
            train-v1.1.json, dev-v1.1.json, train-v2.0.json and dev-v2.0.json, or excerpts, such as
            train-v1.1-small.json, each perhaps packed as .json.gz. Without dev-v1.1 there is dev-v2.0 in its place, and
            without train-v2.0 train-v1.1.
        train_file: a file to train on in their place.
        test_file: a file to test on in their place.

    Returns:
        The parts "train", "val" and "test".

    Raises:
        FileNotFoundError: a file is missing; the message says which to put where.
        ValueError: a file is not what it should be; the message names file and question. Or both files have a question,
            or there are too few articles.

    Source:
        Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016; Rajpurkar et al., Know What
        You Don't Know, 2018.
    """
    folder = data_folder(data_root) / "squad"
    paths = train_file or _find(folder, name, "train"), test_file or _find(folder, name, "test")
    train, test = (read_squad(path) for path in paths)
    common = {question.id for question in train} & {question.id for question in test}
    if common:
        raise ValueError(
            f"{paths[1]}: question {shown(min(common))} is in {paths[0]} too, which is trained on; expected questions "
            f"of other articles"
        )
    if name == "v1":
        train, test = ([question for question in part if question.answers] for part in (train, test))
    elif all(question.answers for question in train):
        if all(question.answers for question in test):
            raise ValueError(f"{paths[0]} and {paths[1]} have no question without an answer; choose task v1 for them")
        more, val, test = _divided(test, (3, 1, 4), paths[1])
        return {"train": train + more, "val": val, "test": test}
    titles = len({question.title for question in train})
    held_out = min(max(1, titles // 10), MOST_HELD_OUT)
    train, val = _divided(train, (titles - held_out, held_out), paths[0])
    return {"train": train, "val": val, "test": test}


def _find(folder: Path, name: SquadName, part: str) -> Path:
    """The file of a part: the official one, or the one excerpt that there is."""
    for beginning in _NAMES[name, part]:
        for ending in (".json", ".json.gz"):
            if is_there(folder / f"{beginning}{ending}"):
                return folder / f"{beginning}{ending}"
        excerpts = sorted(path for ending in ("json", "json.gz") for path in folder.glob(f"{beginning}-*.{ending}"))
        if len(excerpts) > 1:
            raise ValueError(
                f"{folder} has {len(excerpts)} files named {beginning}-..., expected one; name the one to use by "
                f"--{part}-file"
            )
        if excerpts:
            return excerpts[0]
    official = f"{_NAMES[name, part][0]}.json"
    address = f"the file of https://rajpurkar.github.io/SQuAD-explorer/dataset/{official} (it is not fetched)"
    raise missing(folder / official, address, "squad")


def _divided(questions: list[Question], shares: Sequence[int], path: Path) -> list[list[Question]]:
    """Questions in parts of whole articles, whose numbers are as these shares; each has an article at least."""
    titles = list(dict.fromkeys(question.title for question in questions))
    if len(titles) < len(shares):
        raise ValueError(f"{path} has {len(titles)} articles that can be used, expected {len(shares)} at least")
    order = torch.randperm(len(titles), generator=torch.Generator().manual_seed(0)).tolist()
    sizes = [max(1, len(titles) * share // sum(shares)) for share in shares[:-1]]
    part_of, begin = dict[str, int](), 0
    for part, size in enumerate([*sizes, len(titles) - sum(sizes)]):
        part_of |= {titles[place]: part for place in order[begin : begin + size]}
        begin += size
    return [[question for question in questions if part_of[question.title] == part] for part in range(len(shares))]


def read_squad(path: Path, *, answers: bool = True) -> list[Question]:
    """Read a file in the format of SQuAD 1.1 or 2.0; every answer must stand in its context where it says.

    Args:
        path: the file.
        answers: read the answers; without, the questions have none, whatever the file says of them.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is too large, no JSON, or not in this format; the message names the question.
    """
    content = read_bytes(path, expected=_EXPECTED, most=MOST_JSON_BYTES)
    if path.suffix == ".gz":
        content = unpacked(content, path, expected=f"{_EXPECTED}. {NEW_COPY}", most=MOST_JSON_BYTES)
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}); expected {_EXPECTED}. {NEW_COPY}") from error
    questions = dict[str, Question]()
    for question in _questions(tree, path, answers):
        if question.id in questions:
            raise ValueError(f"{path}: two questions have the id {shown(question.id)}; expected an id of its own each")
        questions[question.id] = question
    if not questions:
        raise ValueError(f"{path} has no questions; expected {_EXPECTED}. {NEW_COPY}")
    return list(questions.values())


def _questions(tree: object, path: Path, with_answers: bool) -> Iterator[Question]:
    for place, article in enumerate(_take(tree, "data", list, path), 1):
        title = _take(article, "title", str, f"{path}: article {place}")
        for number, paragraph in enumerate(_take(article, "paragraphs", list, f"{path}: article {place}"), 1):
            where = f"{path}: paragraph {number} of article {shown(title)}"
            context = _take(paragraph, "context", str, where)
            for entry in _take(paragraph, "qas", list, where):
                key = _take(entry, "id", str, where)
                where_asked = f"{path}: question {shown(key)}"
                text = _take(entry, "question", str, where_asked)
                answers = _answers(entry, context, where_asked) if with_answers else ()
                yield Question(key, title, context, text, answers)


def _answers(entry: dict[str, Any], context: str, where: str) -> tuple[Answer, ...]:
    answers = tuple(_answer(one, context, where) for one in _take(entry, "answers", list, where))
    _check_possible(entry.get("is_impossible", False), answers, where)
    return answers


def _answer(entry: object, context: str, where: str) -> Answer:
    text, start = _take(entry, "text", str, where), _take(entry, "answer_start", int, where)
    if start < 0 or context[start : start + len(text)] != text:
        seen = shown(context[start : start + len(text)]) if 0 <= start < len(context) else "nothing"
        raise ValueError(
            f"{where}: its answer {shown(text)} is not in the context at character {shown(start)}, where there is "
            f"{seen}; expected the answer there. Mend answer_start (characters count from 0), or remove the question."
        )
    return Answer(text, start)


def _check_possible(impossible: object, answers: Sequence[Answer], where: str) -> None:
    if not isinstance(impossible, bool) or impossible == bool(answers):
        raise ValueError(
            f"{where}: it has {len(answers)} answers, and is_impossible is {shown(impossible)}; expected an answer at "
            f"least, or none and true"
        )


def _take(holder: object, name: str, kind: type[T], where: object) -> T:
    """The value of a name in a JSON object; a text may be blank where it is the question, and nowhere else."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        names = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}
        raise ValueError(f"{where}: '{name}' is {shown(value)}; expected {names[kind]}, in a file of SQuAD. {NEW_COPY}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: '{name}' holds half a character ({error.reason}); expected UTF-8") from error
        if not value.strip() and name != "question":
            raise ValueError(f"{where}: '{name}' is blank; expected a text")
    return value
