"""Segmentation maps of photographs, which tell what is where in them: a numpy archive (.npz) with the entries

names       names of the photographs' files, [photographs]
classes     names of the classes, the background first, [classes]
named       class of every point, [photographs, rows, columns]: a grid over the photograph whose first and last points
            lie on its edges
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.datasets.arrays import read_arrays
from experiments.files import reading


@dataclass(frozen=True, eq=False)
class SegmentationMaps:
    """Which class is where in photographs."""

    names: list[str]  # names of the photographs' files
    classes: list[str]  # names of the classes, the background first
    points: np.ndarray  # [photographs, rows, columns], the class of every point

    @cached_property
    def places(self) -> dict[str, int]:
        """Place of every photograph by its name."""
        return {name: place for place, name in enumerate(self.names)}

    def shares(self, name: str, grid: tuple[int, int]) -> Tensor:
        """Return which share of every cell of a grid belongs to every class, [classes, cells], cells row by row.

        A point stands for what is nearer to it than to the others.

        Example:
            >>> maps = SegmentationMaps(["a.jpg"], ["background", "dog"], np.array([[[0, 1], [0, 0]]]))
            >>> maps.shares("a.jpg", (1, 2))[1]
            tensor([0.0000, 0.5000])
        """
        at = one_hot(torch.from_numpy(self.points[self.places[name]].astype(np.int64)), len(self.classes)).float()
        rows, columns = (_overlap(cells, points) for cells, points in zip(grid, at.shape[:2], strict=True))
        return torch.einsum("ap,bq,pqc->cab", rows, columns, at).flatten(1)


def _overlap(cells: int, points: int) -> Tensor:
    """Share of every cell of a side that belongs to every point, [cells, points]."""
    ends = ((torch.arange(points + 1) - 0.5) / max(1, points - 1)).clamp(0, 1)
    ends[-1] = 1  # of a single point, too
    sides = torch.arange(cells + 1) / cells
    length = torch.minimum(sides[1:, None], ends[1:]) - torch.maximum(sides[:-1, None], ends[:-1])
    return length.clamp(min=0) * cells


def read_maps(path: Path) -> SegmentationMaps:
    """Read a file of segmentation maps; DamagedFileError where it is no such file."""
    remedy = "name another file of segmentation maps by --maps"
    with reading(path, "names, classes, and named that goes with them", remedy):
        arrays = read_arrays(path, remedy)
        names, classes = (
            [text.decode() if isinstance(text, bytes) else str(text) for text in arrays[part].tolist()]
            for part in ("names", "classes")
        )
        points = arrays["named"]
        if points.ndim != 3 or len(points) != len(set(names)) or not 0 <= points.min() <= points.max() < len(classes):
            raise ValueError(
                f"classes {list(points.shape)} to {points.max()} of {len(names)} names, {len(classes)} classes"
            )
        return SegmentationMaps(names, classes, points)
