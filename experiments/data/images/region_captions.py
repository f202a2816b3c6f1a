"""Images as sets of regions with features, their captions, batches of both, and maps of what is where."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import Dataset

from experiments.data.images.captions import ImageFile
from experiments.data.images.image_features import GridEncoder, encode_photograph, shown_pixels
from experiments.data.places import read_arrays
from experiments.data.text.batches import Batch, Vocabulary, teacher_forced
from experiments.files import reading


@dataclass(frozen=True, eq=False)
class RegionCaptions:
    """Images as regions, and their captions."""

    regions: Tensor  # [images, N, F], features of the regions; cells of a grid, row by row
    captions: list[list[str]]  # captions of every image, words with blanks between
    grid: tuple[int, int]  # number of rows and of columns
    # what to show: [images, height, width] float32, 0 is paper and 1 is ink, or [images, 3, height, width] uint8
    pictures: Tensor
    name: str  # name of the data set
    network: GridEncoder | None = None  # what made the features of photographs; None where they are no photographs
    files: Sequence[ImageFile] = ()  # the photographs as they were taken; none where they are no photographs
    digits: Tensor | None = None  # [images, N] int64, those of digit scenes; -1 in a cell that holds none

    def __len__(self) -> int:
        return len(self.captions)

    def first(self, count: int | None) -> "RegionCaptions":
        """Return the first images."""
        digits = None if self.digits is None else self.digits[:count]
        regions, captions, pictures = self.regions[:count], self.captions[:count], self.pictures[:count]
        return replace(
            self, regions=regions, captions=captions, pictures=pictures, files=self.files[:count], digits=digits
        )

    def shown(self, place: int) -> Tensor:
        """Return the picture of an image: a photograph in its own shape, scaled down if it is large."""
        return shown_pixels(self.files[place].open()) if self.files else self.pictures[place]

    def with_captions(self, captions: Sequence[str]) -> "RegionCaptions":
        """Return the images with one caption each, such as a model has made."""
        return replace(self, captions=[[caption] for caption in captions])

    def sources(self, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Give regions [B, N, F] float32 and their mask [B, N] of so many images at a time."""
        for regions in self.regions.split(size):
            yield regions.float().to(device), torch.ones(regions.shape[:2], dtype=torch.bool, device=device)


def own_photograph(image: Image.Image, like: RegionCaptions, *, device: torch.device | str = "cpu") -> RegionCaptions:
    """Return one more photograph without captions, its regions made by what made those of others."""
    if like.network is None:
        raise ValueError(f"the images of {like.name} are no photographs, so a photograph cannot be one of them")
    regions, picture = encode_photograph(like.network, image, like.pictures.size(-1), device=device)
    return replace(like, regions=regions, captions=[[]], pictures=picture[None], files=())


class EncodedCaptions(Dataset[Batch]):
    """Pairs of an image and one of its captions; indexed by a list of places it gives the `Batch` of these pairs.

    Of an image there are the first `references` captions, or all. Its pairs stand together, so that the place of a pair
    tells its image and caption; see `image` and `firsts`.
    """

    def __init__(self, data: RegionCaptions, vocabulary: Vocabulary, *, references: int | None = None) -> None:
        kept = [captions[:references] for captions in data.captions]
        self.regions = data.regions
        self.image = [image for image, captions in enumerate(kept) for _ in captions]
        self.counts = [len(captions) for captions in kept]
        self.firsts = [0, *accumulate(self.counts)][:-1]
        texts = [caption for captions in kept for caption in captions]
        self.targets = [torch.tensor(vocabulary.encode(text), dtype=torch.int64) for text in texts]

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Number of regions and length of the caption of every pair; the latter counts <s> or </s>."""
        return [(self.regions.size(1), len(target) + 1) for target in self.targets]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        regions = self.regions[[self.image[i] for i in indices]].float()
        mask = torch.ones(regions.shape[:2], dtype=torch.bool)
        targets = teacher_forced([self.targets[i] for i in indices])
        return Batch(regions, mask, *targets, torch.tensor(indices, dtype=torch.int64))


# segmentation maps, which tell what is where in photographs


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
    """Read a file of segmentation maps; DamagedFileError where it is no such file.

    It is a numpy archive (.npz) with the names of the photographs' files, the names of the classes, the background
    first, and `named`, [photographs, rows, columns]: the class of every point of a grid over the photograph whose first
    and last points lie on its edges.
    """
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
