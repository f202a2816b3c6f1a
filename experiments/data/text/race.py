"""RACE: English examinations, whose questions on a passage have several options, one of which is right."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from experiments.data.dataset_names import RaceLevel
from experiments.data.storage import data_folder, missing
from experiments.files import check_characters, reading

LEVELS: tuple[RaceLevel, ...] = ("middle", "high")
_FOLDERS = {"train": "train", "val": "dev", "test": "test"}
_ARCHIVE = "RACE.tar.gz of https://www.cs.cmu.edu/~glai1/data/race/ (it is not fetched)"
_EXPECTED = "a JSON object with article, questions, options and answers, as in RACE"
_REMEDY = "correct or remove the question"


@dataclass(frozen=True)
class Choice:
    """Question on a passage with its options.

    Attributes:
        id: Name of the passage's file, and the number of the question in it, counted from 1.
        level: Name of the folder of the passage, such as middle or high.
        passage: The passage.
        question: The question; an underscore in it stands for the option.
        options: The options, two or more.
        answer: Index of the right option; None where answers are not read.
    """

    id: str
    level: str
    passage: str
    question: str
    options: tuple[str, ...]
    answer: int | None


def load_race(*levels: RaceLevel, data_root: Path | str | None = None) -> dict[str, list[Choice]]:
    """Load the parts "train", "val" and "test" of RACE, as its publishers divided it.

    The files are RACE/train/middle/1.txt and so on: a passage each, in the folders train, dev and test, and in each of
    them middle and high.

    Args:
        levels: Levels of the examinations, middle schools or high schools; both when omitted.
        data_root: Folder of the data sets.

    Raises:
        FileNotFoundError: A folder is missing, or has no passage.
        DamagedFileError: A file has other content, or a question with too few options or another answer than these.

    Source:
        Lai et al., RACE: Large-scale ReAding Comprehension Dataset From Examinations, 2017.
    """
    root = data_folder(data_root) / "RACE"
    return {
        part: [choice for level in levels or LEVELS for path in _passages(root / name / level)
               for choice in read_race(path)]
        for part, name in _FOLDERS.items()
    }  # fmt: skip


def _passages(folder: Path) -> list[Path]:
    """Return the files of the passages in a folder, in the order of their numbers."""
    paths = [path for path in folder.glob("*") if path.suffix in (".txt", ".json")]
    if not paths:
        raise missing(folder, f"a folder of passages, such as 1.txt, from {_ARCHIVE}", "RACE")
    return sorted(paths, key=lambda path: (len(path.stem), path.stem))


def read_race(path: Path, *, answers: bool = True) -> list[Choice]:
    """Read the questions of a file in the format of RACE, which holds one passage.

    Args:
        path: The file.
        answers: Read the answers, the letters A, B and so on; otherwise the questions have none.

    Raises:
        DamagedFileError: The file is missing, lacks a field, or has a question with fewer than two options or with an
            answer that is none of them.
    """
    with reading(path, _EXPECTED):
        content = json.loads(path.read_bytes())
        fields = ("article", "questions", "options", "answers")[: 4 if answers else 3]
        if lacking := [name for name in fields if name not in content]:
            raise ValueError(f"it has no {' and no '.join(lacking)}")
        lengths = {name: len(content[name]) for name in fields[1:]}
        if not content["article"].strip() or not content["questions"] or len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise ValueError(f"a passage of {len(content['article'].strip())} characters with {counts}")
    return [*_choices(content, path, answers=answers)]


def _choices(content: dict[str, Any], path: Path, *, answers: bool) -> Iterator[Choice]:
    for number, (question, options) in enumerate(zip(content["questions"], content["options"], strict=True), 1):
        with reading(f"{path}: question {number}", "two options or more, and one of them as the answer", _REMEDY):
            if isinstance(options, str) or len(options) < 2 or not all(isinstance(option, str) for option in options):
                raise ValueError(f"the options are {options}")
            check_characters(content["article"], str(question), *options)
            yield Choice(
                f"{path.name}-{number}", path.parent.name, content["article"], str(question), tuple(options),
                _index(content["answers"][number - 1], options) if answers else None,
            )  # fmt: skip


def _index(letter: object, options: Sequence[str]) -> int:
    """Return the index of the option that a letter names."""
    known = ascii_uppercase[: len(options)]
    if letter not in [*known]:
        raise ValueError(f"the answer is {letter!r}, and the options are {known[0]} to {known[-1]}")
    return known.index(str(letter))
