"""Questions as files have them: their words, JSON files, and photographs that are held out."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from reprlib import repr as shown
from typing import Any, NamedTuple

import torch

from experiments.datasets.images.caption_data import caption_words
from experiments.datasets.questions.data import Questions, Regions
from experiments.files import read_packed, reading

__all__ = ["Entry", "as_questions", "held_out", "question_words", "read_json_file"]


class Entry(NamedTuple):
    """A question: its words, how many people gave each answer, the place of its photograph, and its kind."""

    words: list[str]
    votes: dict[str, int]
    photograph: int
    kind: str


def question_words(text: object, place: str) -> list[str]:
    """Return the words of a question: in small letters, without punctuation.

    Raises:
        ValueError: no text, or one without a word; the message begins with the place.
    """
    words = caption_words(text) if isinstance(text, str) else []
    if not words:
        raise ValueError(f"{place}: the question is {shown(text)}; expected a text with a word. Mend or remove it.")
    return words


def read_json_file(path: Path, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return what is in a JSON file, which may be packed (.gz); DamagedFileError where there is none.

    Args:
        path: the file.
        object_hook: makes something smaller of every object, as that of `json.loads`.
    """
    with reading(path, "an intact JSON file"):
        return json.loads(read_packed(path), object_hook=object_hook)


def as_questions(name: str, entries: Sequence[Entry], regions: Regions) -> Questions:
    """Return questions in their order."""
    words, votes, photographs, kinds = zip(*entries, strict=True)
    return Questions(name, words, votes, torch.tensor(photographs), regions, kinds)


def held_out(data: Questions, share: float, name: str) -> tuple[Questions, Questions]:
    """Part questions by photograph, so that no photograph is in both parts; the same photographs every time.

    Args:
        data: the questions.
        share: share of the photographs that are held out; one at least.
        name: name of the questions about them.

    Returns:
        The other questions, and those about the photographs that are held out.

    Raises:
        ValueError: fewer than two photographs.
    """
    count = len(data.regions)
    if count < 2:
        raise ValueError(f"{data.name}: {count} photograph; expected two at least, of which one is held out")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    is_held = torch.zeros(count, dtype=torch.bool)
    is_held[order[: max(1, round(share * count))]] = True
    asked = is_held[data.photographs]
    kept, held = ((asked == value).nonzero().flatten().tolist() for value in (False, True))
    return data.pick(kept), replace(data.pick(held), name=name)
