"""Graphs in numpy archives whose splits are masks, one or several, or drawn: the format of one's own graph.

======================================== ============================================================================
key                                      content
======================================== ============================================================================
y                                        integers [nodes]: classes from 0, and -1 where the class is not known
edge_index                               integers [2, edges]: sources in row 0, targets in row 1
x                                        numbers [nodes, features]
x_data, x_indices, x_indptr, x_shape     instead of x: the same as one CSR matrix
train_mask, val_mask, test_mask          truth values [nodes], or [splits, nodes], of which one split is chosen; none of
                                         the three: half of the known nodes, drawn at random, are for training, a
                                         quarter to validate and the rest to test on
metric                                   optional: the text accuracy, or roc_auc where there are two classes
======================================== ============================================================================

Edges are read as undirected: both directions of each, once, without self loops. Features stay as they are.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.datasets.arrays import read_arrays
from experiments.datasets.graphs.data import GraphData, GraphDataError, MetricName, require
from experiments.datasets.graphs.parts import array_of, both_directions, csr_of, int64, sparse_features, to_mask
from experiments.datasets.places import SPLITS

__all__ = ["read_masked_graph", "read_own_graph"]

_SPARSE = {"x_data": np.number, "x_indices": np.integer, "x_indptr": np.integer, "x_shape": np.integer}
_MASKS = tuple(f"{split}_mask" for split in SPLITS)
_KEY_OF_FIELD = {"features": "x", "labels": "y"}
_OWN = "Correct the file; the first lines of experiments/datasets/graphs/masked.py list its keys."


def read_own_graph(path: Path, *, split_seed: int = 0) -> GraphData:
    """Read a graph of one's own, named after its file; it has as many classes as the largest one in y says.

    The seed chooses the split where the file holds several, and draws it where the file holds none.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged or of another format, or there is no such split; the message names the key.
    """
    return read_masked_graph(path, path.stem, split_seed=split_seed, remedy=_OWN)


def read_masked_graph(
    path: Path,
    name: str,
    *,
    split_seed: int,
    remedy: str,
    num_classes: int | None = None,
    metric: MetricName | None = None,
) -> GraphData:
    """Read a graph with the keys above; without `num_classes` they are counted, and `metric` replaces that of the file.

    Raises:
        OSError, ValueError: see `read_own_graph`; the message ends with the remedy.
    """
    arrays = read_arrays(path)
    try:
        labels = _labels(arrays)
        features = _features(arrays)
        seen, expected = f"{len(features)} rows", f"{len(labels)}, one a node as in y"
        require(len(features) == len(labels), "features", seen, expected)
        return GraphData(
            name=name,
            features=features,
            labels=labels.clamp(min=0),
            edge_index=both_directions(int64(array_of(arrays, "edge_index", np.integer, 2)), len(labels)),
            **_masks(arrays, labels, split_seed, name),
            num_classes=num_classes or int(labels.max()) + 1,
            metric=metric or _metric(arrays),
        )
    except GraphDataError as error:
        key = _KEY_OF_FIELD.get(error.field, error.field)
        raise ValueError(f"{path}, key {key!r}: {error}. {remedy}") from error


def _metric(arrays: dict[str, np.ndarray]) -> Any:
    """What the file asks for, or accuracy; `GraphData` checks that there is such a metric."""
    return array_of(arrays, "metric", np.str_, 0).item() if "metric" in arrays else "accuracy"


def _labels(arrays: dict[str, np.ndarray]) -> Tensor:
    labels = int64(array_of(arrays, "y", np.integer, 1))
    require(bool((labels >= 0).any()), "y", f"{len(labels)} nodes, none of a known class", "classes from 0")
    require(bool((labels >= -1).all()), "y", f"the class {int(labels.min())}", "classes from 0, and -1 where unknown")
    return labels


def _features(arrays: dict[str, np.ndarray]) -> Tensor:
    dense = "x" in arrays
    twice = dense and any(key in arrays for key in _SPARSE)
    require(not twice, "x", "both x and x_data, x_indices, x_indptr, x_shape", "one of the two forms")
    if not dense:
        csr = csr_of({key: array_of(arrays, key, kind, 1) for key, kind in _SPARSE.items()})
        return sparse_features(csr.astype(np.float64))
    if arrays["x"].dtype == np.bool_:
        arrays = {"x": arrays["x"].astype(np.uint8)}
    return torch.from_numpy(array_of(arrays, "x", np.number, 2).astype(np.float64)).float()


def _masks(arrays: dict[str, np.ndarray], labels: Tensor, split_seed: int, name: str) -> dict[str, Tensor]:
    """The chosen split, or the drawn one."""
    if not any(key in arrays for key in _MASKS):
        return _drawn(labels, split_seed)
    masks = {key: np.atleast_2d(array_of(arrays, key, np.bool_, 1, 2)) for key in _MASKS}
    splits = max(1, len(masks[_MASKS[0]]))
    for key, mask in masks.items():
        expected = f"[{len(labels)}] or [splits, {len(labels)}], as many as in y, and the same splits in all masks"
        require(mask.shape == (splits, len(labels)), key, f"shape {list(arrays[key].shape)}", expected)
    if not 0 <= split_seed < splits:
        expected = "0" if splits == 1 else f"0 to {splits - 1}"
        raise ValueError(f"split_seed={split_seed}, but {name!r} has {splits} fixed splits; expected {expected}")
    chosen = {key: torch.from_numpy(mask[split_seed].copy()) for key, mask in masks.items()}
    for key, nodes in chosen.items():
        unknown = int((labels[nodes] < 0).sum())
        require(unknown == 0, key, f"{unknown} nodes whose y is -1", "nodes whose class is known")
    return chosen


def _drawn(labels: Tensor, seed: int) -> dict[str, Tensor]:
    known = (labels >= 0).nonzero().squeeze(1)
    require(len(known) >= 4, "y", f"{len(known)} nodes of a known class", "4 and more, of which a split can be drawn")
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    half, end = len(order) // 2, len(order) * 3 // 4
    parts = order[:half], order[half:end], order[end:]
    return {key: to_mask(nodes, len(labels)) for key, nodes in zip(_MASKS, parts, strict=True)}
