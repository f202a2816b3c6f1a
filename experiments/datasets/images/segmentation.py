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

from experiments.datasets.safe_arrays import read_arrays
from experiments.datasets.untrusted import clipped

__all__ = ["SegmentationMaps", "read_maps"]

_REMEDY = "Name another file of segmentation maps by --maps."


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
        OSError: the file is missing, or cannot be read.
        ValueError: it is damaged or lacks something, masks of a photograph overlap, or entries do not go together.
    """
    arrays = read_arrays(path, remedy=_REMEDY)
    kind = "masks" if "masks" in arrays else "named"
    for name, dimensions in (("names", 1), ("classes", 1), (kind, 4 if kind == "masks" else 3)):
        seen = f"{arrays[name].ndim} dimensions" if name in arrays else "missing"
        if seen != f"{dimensions} dimensions":
            raise ValueError(f"{path}: {name} is {seen}; expected {dimensions} dimensions. {_REMEDY}")
    names, classes = (_texts(arrays[name], f"{path}: {name}") for name in ("names", "classes"))
    points = arrays[kind]
    if len(points) != len(names) or 0 in points.shape:
        raise ValueError(f"{path}: {kind} of shape {list(points.shape)} and {len(names)} names; expected one each")
    if kind == "masks":
        points = _without_overlap(points, names, classes, path)
    elif points.dtype.kind not in "ui" or not 0 <= points.min() <= points.max() < len(classes):
        seen = f"{points.dtype} from {points.min()} to {points.max()}"
        raise ValueError(f"{path}: named is {seen}; expected whole numbers of {len(classes)} classes. {_REMEDY}")
    return SegmentationMaps(names, classes, points)


def _texts(array: np.ndarray, what: str) -> list[str]:
    """Texts, of which no two are the same."""
    if array.dtype.kind not in "SU":
        raise ValueError(f"{what} is {array.dtype}; expected texts. {_REMEDY}")
    found = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in array.tolist()]
    twice, count = Counter(found).most_common(1)[0] if found else ("", 0)
    if count > 1:
        raise ValueError(f"{what} has {clipped(twice)} twice; expected every name once. {_REMEDY}")
    return found


def _without_overlap(masks: np.ndarray, names: list[str], classes: list[str], path: Path) -> np.ndarray:
    """The class of every point, of masks [photographs, classes but the background, rows, columns]."""
    if masks.dtype.kind != "b" or masks.shape[1] != len(classes) - 1:
        seen, wanted = f"{masks.dtype} of {masks.shape[1]} classes", f"truth values of {len(classes) - 1}"
        raise ValueError(f"{path}: masks are {seen}; expected {wanted}, all but the first. {_REMEDY}")
    crowded = np.argwhere(masks.sum(1) > 1)
    if len(crowded):
        place, row, column = crowded[0].tolist()
        both = [clipped(classes[1 + one]) for one in np.flatnonzero(masks[place, :, row, column])[:2]]
        raise ValueError(
            f"{path}: masks of {' and '.join(both)} overlap in {clipped(names[place])} at row {row}, column {column}; "
            f"expected one class at most at a point. Give the point to one of them."
        )
    return np.where(masks.any(1), masks.argmax(1) + 1, 0)
