"""What every set of questions is read into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.datasets.images.captions import caption_words
from experiments.datasets.images.image_features import GridEncoder

_MOST_NUMBERS = 2**27  # that the spread is computed of; all of a large set would not fit into memory


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of photographs."""

    features: Tensor  # ``[photographs, N, F]``, or ``[photographs, views, N, F]`` where several detectors have looked
    mask: Tensor  # True at regions, False at padding; shaped like the features without their width
    grid: tuple[int, int]  # number of rows and of columns
    pictures: Tensor  # pixels for drawing, [photographs, height, width] or [photographs, 3, height, width]
    encoder: GridEncoder | None = None  # what made the features of the pictures; None where it is not at hand

    def __len__(self) -> int:
        return len(self.features)

    @property
    def spread(self) -> float:
        """Standard deviation of the features; of a large set, those of the first photographs."""
        first = slice(max(1, _MOST_NUMBERS // self.features[0].numel()))
        return self.features[first][self.mask[first]].float().std().item()


def cell_positions(grid: tuple[int, int]) -> Tensor:
    """Return row and column of every cell of a grid, one-hot, ``[cells, rows + columns]``.

    Example:
        >>> cell_positions((1, 2)).tolist()
        [[1, 1, 0], [1, 0, 1]]
    """
    cells = torch.arange(grid[0] * grid[1])
    return torch.cat([one_hot(cells // grid[1], grid[0]), one_hot(cells % grid[1], grid[1])], 1)


@dataclass(frozen=True, eq=False)
class Questions:
    """Questions, their answers, and the regions that they are about."""

    name: str  # name of the data set
    questions: Sequence[Sequence[str]]  # words of every question
    answers: Sequence[str]  # answer to every question
    photographs: Tensor  # ``[questions]``, place of every question's photograph in the regions
    regions: Regions  # the regions of all photographs
    kinds: Sequence[str]  # kind of every question, such as "count"; results are told by kind
    relevant: Tensor | None = None  # ``[questions, N]`` bool, the regions that one has to look at, where known

    def __len__(self) -> int:
        return len(self.questions)

    def pick(self, places: Sequence[int]) -> Questions:
        """Return the questions at some places, about the same photographs."""
        chosen = torch.as_tensor(places, dtype=torch.long)
        return replace(
            self,
            questions=[self.questions[place] for place in places],
            answers=[self.answers[place] for place in places],
            photographs=self.photographs[chosen],
            kinds=[self.kinds[place] for place in places],
            relevant=None if self.relevant is None else self.relevant[chosen],
        )

    def of_kinds(self, kinds: Sequence[str]) -> Questions:
        """Return the questions of some kinds."""
        return self.pick([place for place, kind in enumerate(self.kinds) if kind in kinds])

    def held_out(self, share: float, name: str) -> tuple[Questions, Questions]:
        """Part the questions by photograph, the same ones every time: the rest, and those about the share held out."""
        count = len(self.regions)
        if count < 2:
            raise ValueError(f"{self.name}: {count} photograph; expected two at least, of which one is held out")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        is_held = torch.zeros(count, dtype=torch.bool)
        is_held[order[: max(1, round(share * count))]] = True
        asked = is_held[self.photographs]
        kept, held = ((asked == value).nonzero().flatten().tolist() for value in (False, True))
        return self.pick(kept), replace(self.pick(held), name=name)


class Entry(NamedTuple):
    """A question: its words, its answer, the place of its photograph, and its kind."""

    words: list[str]
    answer: str
    photograph: int
    kind: str


def question_words(text: str) -> list[str]:
    """Return the words of a question: in small letters, without punctuation; ValueError without any."""
    if not (words := caption_words(text)):
        raise ValueError(f"the question is {text!r}; expected a text with a word")
    return words


def as_questions(name: str, entries: Sequence[Entry], regions: Regions) -> Questions:
    """Return questions in their order."""
    words, answers, photographs, kinds = zip(*entries, strict=True)
    return Questions(name, words, answers, torch.tensor(photographs), regions, kinds)
