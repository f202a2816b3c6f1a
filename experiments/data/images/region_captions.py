"""Images as sets of regions with features, with captions, and segmentation maps of photographs."""

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
from experiments.data.storage import read_arrays
from experiments.data.text.batches import Batch, Vocabulary, teacher_forced
from experiments.files import reading


@dataclass(frozen=True, eq=False)
class RegionCaptions:
    """Images as regions, with captions.

    Attributes:
        regions: Features of the regions, ``[images, N, F]``. The regions are the cells of a grid, row by row.
        captions: Captions of every image, with blanks between the words.
        grid: Number of rows and of columns.
        pictures: Pictures to show: drawings ``[images, height, width]`` float32, where 0 is paper and 1 is ink, or
            photographs ``[images, 3, height, width]`` uint8.
        name: Name of the data set.
        network: Network that made the features of photographs; None for drawings.
        files: Files of the photographs; none for drawings.
        digits: Digits of digit scenes, ``[images, N]`` int64, -1 in an empty cell; None for other images.
    """

    regions: Tensor
    captions: list[list[str]]
    grid: tuple[int, int]
    pictures: Tensor
    name: str
    network: GridEncoder | None = None
    files: Sequence[ImageFile] = ()
    digits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.captions)

    def first(self, count: int | None) -> "RegionCaptions":
        """Return the first ``count`` images, all for None."""
        digits = None if self.digits is None else self.digits[:count]
        regions, captions, pictures = self.regions[:count], self.captions[:count], self.pictures[:count]
        return replace(
            self, regions=regions, captions=captions, pictures=pictures, files=self.files[:count], digits=digits
        )

    def shown(self, index: int) -> Tensor:
        """Return the picture of an image; a photograph has its own shape, scaled down if it is large."""
        return shown_pixels(self.files[index].open()) if self.files else self.pictures[index]

    def with_captions(self, captions: Sequence[str]) -> "RegionCaptions":
        """Return the images with one new caption each, such as a network wrote."""
        return replace(self, captions=[[caption] for caption in captions])

    def sources(self, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the regions [B, N, F] float32 and their mask [B, N] of ``size`` images at a time."""
        for regions in self.regions.split(size):
            yield regions.float().to(device), torch.ones(regions.shape[:2], dtype=torch.bool, device=device)


def photograph_regions(
    image: Image.Image, data: RegionCaptions, *, device: torch.device | str = "cpu"
) -> RegionCaptions:
    """Return a new photograph without captions, whose regions are made by the network of a data set.

    Raises:
        ValueError: The images of the data set are no photographs.
    """
    if data.network is None:
        raise ValueError(f"the images of {data.name} are no photographs, so a photograph cannot be one of them")
    regions, picture = encode_photograph(data.network, image, data.pictures.size(-1), device=device)
    return replace(data, regions=regions, captions=[[]], pictures=picture[None], files=())


class EncodedCaptions(Dataset[Batch]):
    """Pairs of an image and one of its captions; a list of indices gives the `Batch` of these pairs.

    The pairs of an image follow each other.

    Args:
        data: Images with captions.
        vocabulary: Word pieces.
        references: Number of captions of each image, the first ones; all when omitted.

    Attributes:
        image: Index of the image of each pair.
        counts: Number of pairs of each image.
        firsts: Index of the first pair of each image.
        targets: Ids of the caption of each pair.
    """

    def __init__(self, data: RegionCaptions, vocabulary: Vocabulary, *, references: int | None = None) -> None:
        captions_of = [captions[:references] for captions in data.captions]
        self.regions = data.regions
        self.image = [image for image, captions in enumerate(captions_of) for _ in captions]
        self.counts = [len(captions) for captions in captions_of]
        self.firsts = [0, *accumulate(self.counts)][:-1]
        texts = [caption for captions in captions_of for caption in captions]
        self.targets = [torch.tensor(vocabulary.encode(text), dtype=torch.int64) for text in texts]

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Number of regions and length of the caption of every pair; the length counts <s> or </s>."""
        return [(self.regions.size(1), len(target) + 1) for target in self.targets]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, indices: Sequence[int]) -> Batch:
        regions = self.regions[[self.image[i] for i in indices]].float()
        mask = torch.ones(regions.shape[:2], dtype=torch.bool)
        targets = teacher_forced([self.targets[i] for i in indices])
        return Batch(regions, mask, *targets, torch.tensor(indices, dtype=torch.int64))


# segmentation maps


@dataclass(frozen=True, eq=False)
class SegmentationMaps:
    """Class of every point of photographs.

    Attributes:
        names: Names of the files of the photographs.
        classes: Names of the classes, the background first.
        points: Class of every point, ``[photographs, rows, columns]``.
    """

    names: list[str]
    classes: list[str]
    points: np.ndarray

    @cached_property
    def indices(self) -> dict[str, int]:
        """Index of every photograph by the name of its file."""
        return {name: index for index, name in enumerate(self.names)}

    def shares(self, name: str, grid: tuple[int, int]) -> Tensor:
        """Return the share of every class in every cell of a grid, [classes, cells], cells row by row.

        A point represents the area that is nearer to it than to all other points.

        Example:
            >>> maps = SegmentationMaps(["a.jpg"], ["background", "dog"], np.array([[[0, 1], [0, 0]]]))
            >>> maps.shares("a.jpg", (1, 2))[1]
            tensor([0.0000, 0.5000])
        """
        points = one_hot(torch.from_numpy(self.points[self.indices[name]].astype(np.int64)), len(self.classes)).float()
        rows, columns = (_overlap(cells, count) for cells, count in zip(grid, points.shape[:2], strict=True))
        return torch.einsum("ap,bq,pqc->cab", rows, columns, points).flatten(1)


def _overlap(cells: int, points: int) -> Tensor:
    """Return the share of every point in every cell of a side, [cells, points]."""
    ends = ((torch.arange(points + 1) - 0.5) / max(1, points - 1)).clamp(0, 1)
    ends[-1] = 1  # also for a single point
    sides = torch.arange(cells + 1) / cells
    length = torch.minimum(sides[1:, None], ends[1:]) - torch.maximum(sides[:-1, None], ends[:-1])
    return length.clamp(min=0) * cells


def read_maps(path: Path) -> SegmentationMaps:
    """Read a file of segmentation maps.

    The file is a numpy archive (.npz) with three arrays: `names` of the files of the photographs, `classes`, the names
    of the classes, the background first, and `named` [photographs, rows, columns], the class of every point of a grid
    whose first and last points lie on the edges of the photograph.

    Raises:
        DamagedFileError: The file is missing or has other content.
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
