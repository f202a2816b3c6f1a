"""What all readers of graphs share: sparse features, edges in both directions, masks, random splits."""

from collections.abc import Mapping

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize
from torch import Tensor

from experiments.datasets.graphs.data import GraphDataError, check_range, require
from experiments.datasets.places import SPLITS

__all__ = [
    "array_of",
    "both_directions",
    "csr_of",
    "int64",
    "random_split",
    "row_normalised",
    "sparse_features",
    "to_mask",
]


def array_of(arrays: Mapping[str, np.ndarray], key: str, kind: type, *dims: int) -> np.ndarray:
    """Return an array of a file; GraphDataError unless it is there, of this kind, and has one of these dimensions."""
    require(key in arrays, key, f"missing among {sorted(arrays)}", "an array")
    array = arrays[key]
    fits = np.issubdtype(array.dtype, kind) and array.ndim in dims
    seen = f"{array.dtype} of shape {list(array.shape)}"
    require(fits, key, seen, f"{kind.__name__} of {' or '.join(map(str, dims))} dimensions")
    return array


def int64(array: np.ndarray) -> Tensor:
    """Return whole numbers of any kind as torch takes them."""
    return torch.from_numpy(array.astype(np.int64))


def csr_of(arrays: Mapping[str, np.ndarray]) -> csr_matrix:
    """Return the matrix of the arrays x_data, x_indices, x_indptr and x_shape; GraphDataError where they are none."""
    shape = tuple(arrays["x_shape"].tolist())
    try:
        matrix = csr_matrix((arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=shape)
        matrix.check_format(full_check=True)
    except ValueError as error:
        expected = "x_data, x_indices, x_indptr, x_shape of one CSR matrix [nodes, features]"
        raise GraphDataError("x_shape", str(error), expected) from error
    matrix.sum_duplicates()
    return matrix


def sparse_features(matrix: csr_matrix) -> Tensor:
    """Return the matrix as a coalesced float32 `torch.sparse_coo`."""
    rows = matrix.tocoo()
    places, values = torch.stack([torch.from_numpy(rows.row), torch.from_numpy(rows.col)]), torch.from_numpy(rows.data)
    return torch.sparse_coo_tensor(places, values, rows.shape, check_invariants=True).float().coalesce()


def row_normalised(matrix: csr_matrix) -> Tensor:
    """Return `sparse_features` of the matrix with rows of sum one, rows of zeros kept."""
    return sparse_features(normalize(matrix, norm="l1"))


def both_directions(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return both directions of every edge once, without self loops, ordered by source and target.

    Raises:
        GraphDataError: an edge of a node that there is not, or not two rows.

    Example:
        >>> both_directions(torch.tensor([[0, 1, 2, 0], [1, 0, 2, 1]]), 3)
        tensor([[0, 1],
                [1, 0]])
    """
    require(len(edge_index) == 2, "edge_index", f"{len(edge_index)} rows", "2, of sources and targets")
    check_range("edge_index", edge_index, num_nodes)
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    edges = torch.cat([source * num_nodes + target, target * num_nodes + source]).unique()
    return torch.stack([edges // num_nodes, edges % num_nodes])


def to_mask(nodes: Tensor, num_nodes: int) -> Tensor:
    """Return [num_nodes] bool, True at the nodes."""
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)


def random_split(
    labels: Tensor, seed: int, *, per_class: int, validation: int, test: int | None = None
) -> dict[str, Tensor]:
    """Draw a split: in random order, the first `per_class` nodes of a class are for training.

    Of the others, the next ones in the order are to validate on, and those after them to test on, by default all. A
    negative label is unknown, and its node in no part. The masks have the names of the fields of `GraphData`.

    Raises:
        GraphDataError: a class, or the graph, has too few nodes.

    Example:
        >>> split = random_split(torch.tensor([0, 0, 1, 1, 1, -1]), 0, per_class=1, validation=2)
        >>> [int(mask.sum()) for mask in split.values()]
        [2, 2, 1]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order] >= 0]
    parts = [order[labels[order] == label][:per_class] for label in labels[order].unique()]
    smallest = min((len(part) for part in parts), default=0)
    require(smallest == per_class, "labels", f"a class of {smallest}", f"{per_class} and more")
    train = torch.cat(parts)
    rest = order[torch.isin(order, train, invert=True)]
    seen, expected = f"{len(rest)} nodes beside the {len(train)} to train on", f"more than {validation}, to test on"
    require(len(rest) > validation, "labels", seen, expected)
    end = None if test is None else validation + test
    parts = [train, rest[:validation], rest[validation:end]]
    return {f"{split}_mask": to_mask(nodes, len(labels)) for split, nodes in zip(SPLITS, parts, strict=True)}
