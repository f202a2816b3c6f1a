"""What all readers of graphs share: row-normalised features, masks, random splits."""

import torch
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize
from torch import Tensor

from experiments.datasets.graphs.data import require
from experiments.datasets.places import SPLITS

__all__ = ["random_split", "row_normalised", "to_mask"]

_MOST_FEATURES = 2**20  # a network has weights for each of them


def row_normalised(matrix: csr_matrix) -> Tensor:
    """Return the matrix with rows of sum one, rows of zeros kept, as a coalesced float32 `torch.sparse_coo`.

    Raises:
        GraphDataError: more than 2 ** 20 columns, which a file of a few bytes can promise.
    """
    columns = matrix.shape[1]
    require(columns <= _MOST_FEATURES, "features", f"{columns} columns", f"at most {_MOST_FEATURES}")
    rows = normalize(matrix, norm="l1").tocoo()
    places, values = torch.stack([torch.from_numpy(rows.row), torch.from_numpy(rows.col)]), torch.from_numpy(rows.data)
    return torch.sparse_coo_tensor(places, values, rows.shape, check_invariants=True).float().coalesce()


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
