"""What every set of questions is read into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.datasets.images.image_features import GridEncoder

__all__ = ["Questions", "Regions", "cell_positions"]

_MOST_NUMBERS = 2**27  # that the spread is computed of; all of a large set would not fit into memory


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of photographs.

    Args:
        features: ``[photographs, N, F]``, or ``[photographs, views, N, F]`` where several detectors have looked.
        mask: True at regions, False at padding; shaped like the features without their width.
        grid: number of rows and of columns, where the regions are the cells of a grid; None where they are boxes.
        pictures: pixels of the photographs for drawing, ``[photographs, height, width]`` or
            ``[photographs, 3, height, width]``; None where there are only features.
        encoder: what made the features of the pictures; None where it is not at hand.
    """

    features: Tensor
    mask: Tensor
    grid: tuple[int, int] | None = None
    pictures: Tensor | None = None
    encoder: GridEncoder | None = None

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
    """Questions, the answers that people gave, and the regions that they are about.

    Args:
        name: name of the data set.
        questions: words of every question.
        answers: votes of every question: answers, and how many people gave each.
        photographs: ``[questions]``, place of every question's photograph in the regions.
        regions: the regions of all photographs.
        kinds: kind of every question, such as "count"; results are told by kind.
        relevant: ``[questions, N]`` bool, the regions that one has to look at; None where that is not known.
    """

    name: str
    questions: Sequence[Sequence[str]]
    answers: Sequence[Mapping[str, int]]
    photographs: Tensor
    regions: Regions
    kinds: Sequence[str]
    relevant: Tensor | None = None

    def __post_init__(self) -> None:
        counts = {
            "questions": len(self.questions),
            "answers": len(self.answers),
            "photographs": len(self.photographs),
            "kinds": len(self.kinds),
        } | ({} if self.relevant is None else {"relevant": len(self.relevant)})
        if len(set(counts.values())) > 1:
            raise ValueError(f"{self.name}: numbers of questions differ: {counts}; expected the same of all")
        for place, words in enumerate(self.questions):
            if not words:
                raise ValueError(f"{self.name}: question {place} has no word; leave it out")
        if len(self.photographs) and not 0 <= int(self.photographs.min()) <= int(self.photographs.max()) < len(
            self.regions
        ):
            raise ValueError(f"{self.name}: a question is about none of the {len(self.regions)} photographs")

    def __len__(self) -> int:
        return len(self.questions)

    def pick(self, places: Sequence[int]) -> Questions:
        """Return the questions at some places, about the same photographs."""
        return replace(
            self,
            questions=[self.questions[place] for place in places],
            answers=[self.answers[place] for place in places],
            photographs=self.photographs[torch.as_tensor(places, dtype=torch.long)],
            kinds=[self.kinds[place] for place in places],
            relevant=None if self.relevant is None else self.relevant[torch.as_tensor(places, dtype=torch.long)],
        )

    def of_kinds(self, kinds: Sequence[str]) -> Questions:
        """Return the questions of some kinds."""
        return self.pick([place for place, kind in enumerate(self.kinds) if kind in kinds])
