"""Regions of photographs, and their features from files, as an object detector writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.data.images.image_features import GridEncoder, fingerprint_of_files
from experiments.data.storage import NEW_COPY, cached_file, missing, read_arrays
from experiments.files import reading

_SPREAD_OF = 2**28  # largest number of features whose standard deviation is computed


@dataclass(frozen=True, eq=False)
class Regions:
    """Regions of photographs."""

    features: Tensor  # ``[photographs, N, F]``, or ``[photographs, views, N, F]`` with several detectors
    mask: Tensor  # True at regions, False at padding; shaped like the features without their width
    grid: tuple[int, int]  # number of rows and of columns
    pictures: Tensor  # pixels for drawing, [photographs, height, width] or [photographs, 3, height, width]
    encoder: GridEncoder | None = None  # the network that computed the features; None where there is none

    def __len__(self) -> int:
        return len(self.features)

    @property
    def spread(self) -> float:
        """Standard deviation of the features, or of those of some photographs where all would fill more than 1 GB."""
        count = max(1, len(self) * _SPREAD_OF // max(1, self.features.numel()))
        chosen = torch.linspace(0, len(self) - 1, count).long() if count < len(self) else slice(None)
        return self.features[chosen][self.mask[chosen]].float().std().item()


def region_features(
    folders: Sequence[Path], name: str, photographs: Sequence[int], cache: Path, *, progress: bool = False
) -> Regions:
    """Return the regions of photographs in their order, padded to the largest number of regions.

    A folder has a file for every photograph. The name of a file ends with the photograph's number: 9.npz, 9.npy or
    COCO_train2014_000000000009.jpg.npz. A .npy file is an array [regions, width]; a .npz file has this array as
    `features` or `x`. Boxes (`boxes` or `bbox`, [regions, 4]) only decide whether features are [width, regions], as in
    the files published with MCAN. Several folders hold several views of the photographs, all of one width.

    Other files are not read. Features are stored with 16 bits in one file of the cache under the name, which is mapped
    into memory.
    """
    of_views = [_feature_files(folder, photographs) for folder in folders]
    paths = [path for of_photograph in zip(*of_views, strict=True) for path in of_photograph]
    shape = (len(photographs), len(folders)) if len(folders) > 1 else (len(photographs),)
    key = [name, fingerprint_of_files(paths), *shape[1:]]
    sizes_path = cached_file(
        cache, f"regions-{name}-sizes.npy", key,
        lambda file: np.save(file, [row.shape for row in _rows(paths, f"sizes of {name}", progress)]),
    )  # fmt: skip
    with reading(sizes_path, "an array of numpy without pickles", "remove the file, and it is made again"):
        sizes = np.load(sizes_path, allow_pickle=False)
    most, width = int(sizes[:, 0].max()), int(sizes[0, 1])

    def write(file: IO[bytes]) -> None:
        form = {"descr": "<f2", "fortran_order": False, "shape": (*shape, most, width)}
        np.lib.format.write_array_header_2_0(file, form)
        for row in _rows(paths, f"regions of {name}", progress):
            file.write(np.pad(row.astype("<f2"), ((0, most - len(row)), (0, 0))).tobytes())

    path = cached_file(cache, f"regions-{name}.npy", key, write)
    with reading(path, "an array of numpy without pickles", "remove the file, and it is made again"):
        features = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    mask = torch.arange(most) < torch.from_numpy(sizes[:, :1])
    return Regions(features, mask.reshape(*shape, most), (0, 0), Tensor())


def _feature_files(folder: Path, photographs: Sequence[int]) -> list[Path]:
    """Return the files of features of the photographs, in their order."""
    if not folder.is_dir():
        raise missing(folder, "a folder of features of regions, or --blind to train without them", "vqa_v2")
    matches = {path: re.search(r"(\d+)(?:\.jpg)?\.np[yz]$", path.name) for path in sorted(folder.iterdir())}
    files = {int(match[1]): path for path, match in matches.items() if match}
    if absent := [number for number in photographs if number not in files]:
        raise ValueError(
            f"{folder}: no features of photograph {absent[0]} ({len(absent)} of {len(photographs)} photographs "
            f"have none); expected features of every photograph of the data. Add them, or remove the photograph there."
        )
    return [files[number] for number in photographs]


def _rows(paths: Sequence[Path], title: str, progress: bool) -> Iterator[np.ndarray]:
    """Yield the features of every photograph, [regions, width]."""
    width = None
    for path in tqdm(paths, title, disable=not progress):
        with reading(path, "finite features [regions, width], of one width in all files", NEW_COPY):
            row = _features(path)
            if row.ndim != 2 or not len(row):
                raise ValueError(f"features {list(row.shape)}")
            width = width or row.shape[1]
            if row.shape[1] != width:
                raise ValueError(f"features of width {row.shape[1]}, and {width} in {paths[0]}")
            if not (np.abs(row) <= np.finfo(np.float16).max).all():  # false for NaN too
                raise ValueError("features are NaN or above 65504")
        yield row


def _features(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        return array
    arrays = read_arrays(path)
    features = arrays["features"] if "features" in arrays else arrays["x"]
    boxes = arrays.get("boxes", arrays.get("bbox"))
    turned = boxes is not None and features.ndim == 2 and len(boxes) == features.shape[1] != len(features)
    return features.T if turned else features
