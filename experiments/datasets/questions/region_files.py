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


class _Source(NamedTuple):
    """Where features are: the file of every photograph, and what reads them."""

    files: Mapping[int, Path]
    read: Callable[[int], np.ndarray]


def region_features(
    folder: Path, split: str, photographs: Sequence[int], cache: Path, *, progress: bool = False
) -> Regions:
    """Return the regions of photographs in their order; those with fewer regions are padded."""
    source = _source(folder, split)
    absent = [number for number in photographs if number not in source.files]
    if absent:
        raise ValueError(
            f"{folder / split}: no features of photograph {absent[0]} ({len(absent)} of {len(photographs)} photographs "
            f"have none); expected those of every photograph with a question. Add them, or remove its questions."
        )
    widths = set[int]()

    def rows() -> Iterator[np.ndarray]:
        for number in tqdm(photographs, f"regions of {split}", disable=not progress):
            row = source.read(number)
            widths.add(row.shape[-1])
            with reading(f"{source.files[number]}: photograph {number}", "finite features [regions, width]", NEW_COPY):
                if row.ndim != 2 or not len(row) or len(widths) > 1:
                    raise ValueError(f"features {list(row.shape)}, widths {widths}")
                if not (np.abs(row) <= np.finfo(np.float16).max).all():  # not of NaN either
                    raise ValueError("features are NaN or above 65504")
            yield row

    stats = {path: path.stat() for path in {source.files[number] for number in photographs}}
    lines = [
        f"{number} {source.files[number].name} {stats[source.files[number]].st_size} "
        f"{stats[source.files[number]].st_mtime_ns}\n"
        for number in photographs
    ]
    key = {"split": split, "files": sha256("".join(lines).encode()).hexdigest()}
    count = len(photographs)
    sizes = cached_array(cache, f"regions-{split}-sizes", key, count, lambda: (np.array([len(row)]) for row in rows()))
    most = int(sizes.max())

    def features() -> Iterator[np.ndarray]:
        for row in rows():
            yield np.pad(row.astype(np.float16), ((0, most - len(row)), (0, 0)))[None]

    found = cached_array(cache, f"regions-{split}", key, count, features)
    return Regions(found, torch.arange(most) < sizes.unsqueeze(-1))


def _source(folder: Path, split: str) -> _Source:
    if (folder / split).is_dir():
        return _separate(folder / split)
    archive, path = folder / f"{split}.npz", folder / f"{split}.npy"
    if archive.is_file():
        return _joint(archive, read_arrays(archive))
    if not path.is_file():
        raise missing(folder / split, f"a folder of features of regions, or {split}.npz or {split}.npy", "vqa_v2")
    parts = {name: folder / f"{split}_{name}.npy" for name in ("image_ids", "num_regions")}
    arrays = {name: map_array(part) for name, part in parts.items() if part.is_file()}
    return _joint(path, {"features": map_array(path), **arrays})


def _separate(folder: Path) -> _Source:
    """A file of every photograph."""
    matches = {path: re.search(r"(\d+)(?:\.jpg)?\.np[yz]", path.name) for path in sorted(folder.iterdir())}
    files = {int(match[1]): path for path, match in matches.items() if match}
    if len(files) < sum(map(bool, matches.values())):
        raise ValueError(f"{folder}: two files of one photograph; remove one of them")

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
    with reading(
        path, "features [photographs, regions, width], image_ids and perhaps num_regions [photographs]", NEW_COPY
    ):
        features, ids = arrays["features"], arrays["image_ids"]
        sizes = arrays.get("num_regions", np.full(len(ids), features.shape[1]))
        places = {number: place for place, number in enumerate(ids.tolist())}
        fit = len(places) == len(features) == len(sizes) and 1 <= sizes.min() <= sizes.max() <= features.shape[1]
        if not fit:
            raise ValueError(f"features {list(features.shape)}, {len(places)} image_ids, num_regions to {sizes.max()}")
    return _Source(dict.fromkeys(places, path), lambda number: features[places[number], : int(sizes[places[number]])])
