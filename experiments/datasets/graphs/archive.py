"""Graphs in numpy archives without pickles: citation graphs with their public split, DBLP with a random one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from experiments.datasets.arrays import read_arrays
from experiments.datasets.graphs.data import GraphData, GraphDataError, check_range, require
from experiments.datasets.graphs.parts import array_of, csr_of, int64, random_split, row_normalised, to_mask
from experiments.datasets.places import NEW_COPY, SPLITS

__all__ = ["find_archive", "read_graph_archive"]

# Kind of the numbers of every key; all have one dimension but edge_index.
_KEYS: dict[str, type] = {"x_data": np.floating}
_KEYS |= dict.fromkeys(("x_indices", "x_indptr", "x_shape", "y", "edge_index"), np.integer)
_SPLIT_KEYS: dict[str, type] = {"y_known": np.bool_} | dict.fromkeys((f"{split}_idx" for split in SPLITS), np.integer)
_KEY_OF_FIELD = {"features": "x_shape", "labels": "y"} | {f"{split}_mask": f"{split}_idx" for split in SPLITS}


def find_archive(name: str, folders: Sequence[Path], *, split: bool = True) -> tuple[Path | None, str]:
    """Return the first NAME.npz in the folders, and an error for where none is: the keys with a split, or without."""
    places = [folder / f"{name}.npz" for folder in folders]
    keys = ", ".join(_KEYS | _SPLIT_KEYS if split else _KEYS)
    looked = f"{name}.npz is missing; looked at {' and '.join(map(str, places))}"
    return next(filter(Path.is_file, places), None), f"{looked}; expected a numpy archive with the keys {keys}."


def read_graph_archive(path: Path, name: str, *, num_classes: int, split_seed: int | None = None) -> GraphData:
    """Read a graph from a numpy archive and normalise the rows of its features, x_*, one CSR matrix [nodes, features].

    With a `split_seed` a split is drawn (20 nodes of a class, 500, 1000) instead of read.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged or of another format; the message names the file and the key.
    """
    keys = _KEYS | _SPLIT_KEYS if split_seed is None else _KEYS
    try:
        found = read_arrays(path)
        arrays = {key: array_of(found, key, kind, 2 if key == "edge_index" else 1) for key, kind in keys.items()}
        return _graph(name, arrays, num_classes, split_seed)
    except GraphDataError as error:
        key = _KEY_OF_FIELD.get(error.field, error.field)
        raise ValueError(f"{path}, key {key!r}: {error}. {NEW_COPY}") from error


def _graph(name: str, arrays: dict[str, np.ndarray], num_classes: int, split_seed: int | None) -> GraphData:
    """Make the graph; here are only the checks that the finished graph no longer allows."""
    data, labels = arrays["x_data"], int64(arrays["y"])
    require(bool(np.isfinite(data).all()), "x_data", "NaN or infinite values", "finite values")
    masks = _public_split(arrays) if split_seed is None else None
    if masks is not None:
        labels = torch.where(torch.from_numpy(arrays["y_known"]), labels, 0)
    matrix = csr_of(arrays)
    if masks is None:
        check_range("y", labels, num_classes)
        nodes = matrix.shape[0]
        require(len(labels) == nodes, "y", f"{len(labels)} entries", f"{nodes}, one a node")
        masks = random_split(labels, split_seed or 0, per_class=20, validation=500, test=1000)
    return GraphData(
        name=name,
        features=row_normalised(matrix),
        labels=labels,
        edge_index=int64(arrays["edge_index"]),
        **masks,
        num_classes=num_classes,
        metric="accuracy",
    )


def _public_split(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    known, count = arrays["y_known"], arrays["y"].size
    require(known.size == count, "y_known", f"{known.size} entries", f"{count}, as many as in y")
    masks = {}
    for split in SPLITS:
        key, nodes = f"{split}_idx", int64(arrays[f"{split}_idx"])
        check_range(key, nodes, count)
        unknown = int((~known[nodes]).sum())
        require(unknown == 0, key, f"{unknown} nodes with y_known False", "nodes whose label is known")
        masks[f"{split}_mask"] = to_mask(nodes, count)
    return masks
