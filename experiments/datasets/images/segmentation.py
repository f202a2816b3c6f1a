"""Segmentation maps of photographs, which tell what is where in them.

A file of maps is a numpy archive (.npz) with the entries

    names       names of the photographs' files, [photographs]
    classes     names of the classes, the background first, [classes]

and one of these two. Their points are a grid over the photograph whose first and last points lie on its edges:

    named       class of every point, [photographs, rows, columns]
    masks       whether a class is at a point, [photographs, classes but the background, rows, columns] bool
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.datasets.arrays import read_arrays
from experiments.files import reading

__all__ = ["SegmentationMaps", "read_maps"]

_REMEDY = "name another file of segmentation maps by --maps"


@dataclass(frozen=True, eq=False)
class SegmentationMaps:
    """Which class is where in photographs.

    Args:
        names: names of the photographs' files.
        classes: names of the classes, the background first.
        points: [photographs, rows, columns], the class of every point.
    """

    names: list[str]
    classes: list[str]
    points: np.ndarray

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
    """Read a file of segmentation maps.

    Raises:
        DamagedFileError: it is missing or damaged, lacks something, masks of a photograph overlap, or entries do not go
            together.
    """
    with reading(path, "names, classes, and named or masks that go with them", _REMEDY):
        arrays = read_arrays(path, _REMEDY)
        names, classes = (_texts(arrays[part], part) for part in ("names", "classes"))
        points = _without_overlap(arrays["masks"], names, classes) if "masks" in arrays else arrays["named"]
        if points.ndim != 3 or len(points) != len(names) or not points.size:
            raise ValueError(f"points of shape {list(points.shape)} and {len(names)} names")
        if points.dtype.kind not in "ui" or not 0 <= points.min() <= points.max() < len(classes):
            raise ValueError(f"{points.dtype} from {points.min()} to {points.max()} of {len(classes)} classes")
        return SegmentationMaps(names, classes, points)


def _texts(array: np.ndarray, what: str) -> list[str]:
    """Texts, of which no two are the same."""
    found = [text.decode() if isinstance(text, bytes) else str(text) for text in array.tolist()]
    if len(set(found)) < len(found):
        raise ValueError(f"{what} has {Counter(found).most_common(1)[0][0]} twice")
    return found


def _without_overlap(masks: np.ndarray, names: list[str], classes: list[str]) -> np.ndarray:
    """The class of every point, of masks [photographs, classes but the background, rows, columns]."""
    if masks.dtype.kind != "b" or masks.ndim != 4 or masks.shape[1] != len(classes) - 1:
        raise ValueError(f"masks {masks.dtype} {list(masks.shape)} of {len(classes)} classes with the background")
    crowded = np.argwhere(masks.sum(1) > 1)
    if len(crowded):
        place, row, column = crowded[0].tolist()
        both = [classes[1 + one] for one in np.flatnonzero(masks[place, :, row, column])[:2]]
        raise ValueError(f"masks of {' and '.join(both)} overlap in {names[place]} at row {row}, column {column}")
    return np.where(masks.any(1), masks.argmax(1) + 1, 0)
