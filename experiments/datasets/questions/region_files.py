"""Features of the regions of photographs from files, as detectors give them; read once, and kept as one array.

For every split, such as train2014, there is in the folder of features one of

    train2014/      a file of every photograph, whose name ends with the photograph's number: 9.npz, 9.npy or
                    COCO_train2014_000000000009.jpg.npz. The .npy is an array [regions, width]; the .npz has it as
                    `features` or `x`. Boxes (`boxes` or `bbox`, [regions, 4]) only tell whether features are
                    [width, regions], as in the files published with MCAN.
    train2014.npz   `features` [photographs, regions, width] and `image_ids` [photographs]; where photographs have fewer
                    regions than that, `num_regions` [photographs], and what follows is padding.
    train2014.npy   the features alone, which may be larger than the memory; the rest is beside it, in
                    train2014_image_ids.npy and train2014_num_regions.npy.

Photographs that no question is about are not read. Kept features have 16 bits.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from experiments.datasets.arrays import cached_array, map_array, read_arrays
from experiments.datasets.places import NEW_COPY, missing
from experiments.datasets.questions.data import Regions
from experiments.files import reading

__all__ = ["region_features"]

_NUMBERED = re.compile(r"(\d+)(?:\.jpg)?\.np[yz]")


class _Source(NamedTuple):
    """Where features are: the file of every photograph, and what reads them."""

    files: Mapping[int, Path]
    read: Callable[[int], np.ndarray]


def region_features(
    folder: Path, split: str, photographs: Sequence[int], cache: Path, *, progress: bool = False
) -> Regions:
    """Return the regions of photographs in their order; those with fewer regions are padded.

    Raises:
        FileNotFoundError: there are no features of the split.
        ValueError: features of a photograph are missing, of another width, not finite or no features at all, or a file
            is damaged; the message names it.
    """
    source = _source(folder, split)
    absent = [number for number in photographs if number not in source.files]
    if absent:
        raise ValueError(
            f"{folder / split}: no features of photograph {absent[0]} ({len(absent)} of {len(photographs)} photographs "
            f"have none); expected those of every photograph with a question. Add them, or remove its questions."
        )
    key = {"split": split, "files": _fingerprint(source.files, photographs)}

    def counts() -> Iterator[np.ndarray]:
        width: int | None = None
        for number in tqdm(photographs, f"regions of {split}", disable=not progress):
            row = source.read(number)
            _check(row, width, f"{source.files[number]}: photograph {number}")
            width = row.shape[1]
            yield np.array([len(row)])

    sizes = cached_array(cache, f"regions-{split}-sizes", key, len(photographs), counts)[0]
    most = int(sizes.max())

    def features() -> Iterator[np.ndarray]:
        for number in tqdm(photographs, f"features of {split}", disable=not progress):
            row = source.read(number).astype(np.float16)
            yield np.pad(row, ((0, most - len(row)), (0, 0)))[None]

    found = cached_array(cache, f"regions-{split}", key, len(photographs), features)[0]
    return Regions(found, torch.arange(most) < sizes.unsqueeze(-1))


def _check(row: np.ndarray, width: int | None, place: str) -> None:
    remedy = "Replace it by an intact one, or remove the questions about the photograph."
    if row.ndim != 2 or row.dtype.kind not in "fiu" or not row.size:
        raise ValueError(f"{place}: features are {row.dtype} {list(row.shape)}; expected [regions, width]. {remedy}")
    if width not in (None, row.shape[1]):
        raise ValueError(f"{place}: features have width {row.shape[1]}; expected {width} as before. {remedy}")
    if not (np.abs(row) <= np.finfo(np.float16).max).all():  # not of NaN either
        raise ValueError(f"{place}: features are NaN or above 65504; expected numbers that 16 bits hold. {remedy}")


def _fingerprint(files: Mapping[int, Path], photographs: Sequence[int]) -> str:
    stats = {path: path.stat() for path in {files[number] for number in photographs}}
    rows = [
        f"{number} {files[number].name} {stats[files[number]].st_size} {stats[files[number]].st_mtime_ns}\n"
        for number in photographs
    ]
    return sha256("".join(rows).encode()).hexdigest()


def _source(folder: Path, split: str) -> _Source:
    if (folder / split).is_dir():
        return _separate(folder / split)
    if (folder / f"{split}.npz").is_file():
        path = folder / f"{split}.npz"
        return _joint(path, read_arrays(path))
    path = folder / f"{split}.npy"
    if not path.is_file():
        raise missing(folder / split, f"a folder of features of regions, or {split}.npz or {split}.npy", "vqa_v2")
    parts = {name: folder / f"{split}_{name}.npy" for name in ("image_ids", "num_regions")}
    arrays = {name: map_array(part) for name, part in parts.items() if part.is_file()}
    return _joint(path, {"features": map_array(path), **arrays})


def _separate(folder: Path) -> _Source:
    """A file of every photograph."""
    files: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := _NUMBERED.search(path.name):
            other = files.setdefault(int(match[1]), path)
            if other != path:
                raise ValueError(f"{path}: photograph {match[1]} has features in {other.name} too. Remove one of both.")

    def read(number: int) -> np.ndarray:
        path = files[number]
        if path.suffix == ".npy":
            return map_array(path)
        arrays = read_arrays(path)
        with reading(path, "an entry features or x"):
            found = arrays["features"] if "features" in arrays else arrays["x"]
        boxes = arrays.get("boxes", arrays.get("bbox"))
        turned = boxes is not None and found.ndim == 2 and len(boxes) == found.shape[1] != len(found)
        return found.T if turned else found

    return _Source(files, read)


def _joint(path: Path, arrays: Mapping[str, np.ndarray]) -> _Source:
    """All photographs in one array."""
    features, ids = arrays.get("features"), arrays.get("image_ids")
    if features is None or ids is None or features.ndim != 3 or not _are_counts(ids, len(features)):
        seen = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise ValueError(
            f"{path}: {seen}; expected features [photographs, regions, width] and image_ids [photographs]. {NEW_COPY}"
        )
    sizes = arrays.get("num_regions", np.full(len(ids), features.shape[1]))
    if not _are_counts(sizes, len(ids)) or sizes.min(initial=1) < 1 or sizes.max(initial=1) > features.shape[1]:
        raise ValueError(
            f"{path}: num_regions is {sizes.dtype} {list(sizes.shape)}; expected of every photograph a number from 1 "
            f"to {features.shape[1]}. {NEW_COPY}"
        )
    places = {number: place for place, number in enumerate(ids.tolist())}
    if len(places) < len(ids):
        raise ValueError(f"{path}: {len(ids)} image_ids of {len(places)} photographs; expected each once. {NEW_COPY}")
    return _Source(dict.fromkeys(places, path), lambda number: features[places[number], : int(sizes[places[number]])])


def _are_counts(array: np.ndarray, length: int) -> bool:
    return array.shape == (length,) and array.dtype.kind in "iu"
