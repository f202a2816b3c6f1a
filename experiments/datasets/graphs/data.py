"""A graph whose nodes are to be classified, the checks of all that it promises, and what readers of graphs share."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.preprocessing import normalize
from torch import Tensor

from experiments.datasets.places import SPLITS

MetricName = Literal["accuracy", "roc_auc"]


# eq=False: comparing two graphs field by field would ask a tensor for its truth value.
@dataclass(frozen=True, eq=False)
class GraphData:
    """One graph whose nodes are to be classified; ValueError, naming the field, unless it is what is said here.

    Args:
        name: name of the data set.
        features: [nodes, features] float32, dense or coalesced `torch.sparse_coo`.
        labels: [nodes] int64 in [0, num_classes); a node in no mask may carry a placeholder.
        edge_index: [2, edges] int64, sources in row 0 and targets in row 1, both directions of every edge,
            no self loops, no duplicates.
        train_mask: [nodes] bool, nodes to train on; the three masks are disjoint and none is empty.
        val_mask: [nodes] bool, nodes to validate on.
        test_mask: [nodes] bool, nodes to test on.
        num_classes: number of classes.
        metric: what a network is judged by: its accuracy, or the area under the ROC curve of the second of two classes,
            both of which the nodes to validate and to test on must then have.
        images: [nodes, height, width] float32 pictures of the nodes for figures, where there are any.
    """

    name: str
    features: Tensor
    labels: Tensor
    edge_index: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    metric: MetricName = "accuracy"
    images: Tensor | None = None

    def __post_init__(self) -> None:
        _check_tensor("features", self.features, torch.float32, (None, None))
        values = self.features.values() if self.features.is_sparse else self.features
        require(bool(values.isfinite().all()), "features", "NaN or infinite values", "finite values")
        _check_tensor("labels", self.labels, torch.int64, (self.num_nodes,))
        check_range("labels", self.labels, self.num_classes)
        _check_edges(self.edge_index, self.num_nodes)
        require(self.metric in get_args(MetricName), "metric", repr(self.metric), f"one of {get_args(MetricName)}")
        taken = torch.zeros_like(self.labels, dtype=torch.bool)
        for field in (f"{split}_mask" for split in SPLITS):
            mask = getattr(self, field)
            _check_tensor(field, mask, torch.bool, (self.num_nodes,))
            require(bool(mask.any()), field, "an empty split", "at least one node")
            require(not (taken & mask).any(), field, "nodes of an earlier split", "disjoint splits")
            taken |= mask
            if self.metric == "roc_auc" and field != "train_mask":
                found = self.labels[mask].unique().tolist()
                require(found == [0, 1] and self.num_classes == 2, field, f"classes {found}", "both of 2, for roc_auc")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    def to(self, device: torch.device | str) -> "GraphData":
        """Return a copy of the graph with every tensor on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def _check_tensor(field: str, value: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Check dtype and shape, where a size of None stands for any."""
    sizes = [have if want is None else want for want, have in zip(shape, value.shape, strict=False)]
    fits = value.dtype == dtype and value.dim() == len(shape) and sizes == list(value.shape)
    expected = f"{dtype} of shape [{', '.join('any' if size is None else str(size) for size in shape)}]"
    require(fits, field, f"{value.dtype} of shape {list(value.shape)}", expected)


def _check_edges(edge_index: Tensor, num_nodes: int) -> None:
    field = "edge_index"
    _check_tensor(field, edge_index, torch.int64, (2, None))
    check_range(field, edge_index, num_nodes)
    source, target = edge_index
    forward, backward = source * num_nodes + target, target * num_nodes + source
    require(not (source == target).any(), field, "self loops", "none; the attention layer adds its own")
    require(len(forward.unique()) == len(forward), field, "duplicate edges", "each once, edge_index.unique(dim=1)")
    expected = "both directions, torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)"
    require(bool(torch.isin(forward, backward).all()), field, "edges without their reverse", expected)


def check_range(field: str, values: Tensor, limit: int) -> None:
    """Raise ValueError unless all values are from 0 to limit - 1."""
    outside = values[(values < 0) | (values >= limit)]
    require(outside.numel() == 0, field, f"{outside[:5].tolist()}", f"values from 0 to {limit - 1}")


def require(holds: bool, field: str, seen: str, expected: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not holds:
        raise ValueError(f"{field}: {seen}; expected {expected}")


def sparse_features(matrix: csr_matrix, *, normalized: bool = False) -> Tensor:
    """Return the matrix as a coalesced float32 `torch.sparse_coo`, its rows divided by their sums if asked for."""
    matrix.check_format(full_check=True)
    matrix.sum_duplicates()
    rows = (normalize(matrix, norm="l1") if normalized else matrix).tocoo()
    places = torch.from_numpy(np.stack([rows.row, rows.col]))
    values = torch.from_numpy(rows.data.astype(np.float32))
    return torch.sparse_coo_tensor(places, values, rows.shape, check_invariants=True).coalesce()


def both_directions(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return both directions of every edge once, without self loops, ordered by source and target.

    Example:
        >>> both_directions(torch.tensor([[0, 1, 2, 0], [1, 0, 2, 1]]), 3)
        tensor([[0, 1],
                [1, 0]])
    """
    check_range("edge_index", edge_index, num_nodes)
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    edges = torch.cat([source * num_nodes + target, target * num_nodes + source]).unique()
    return torch.stack([edges // num_nodes, edges % num_nodes])


def split_masks(num_nodes: int, *parts: Tensor) -> dict[str, Tensor]:
    """Return the masks of a graph, by their names: True at the nodes to train, to validate and to test on."""
    for split, nodes in zip(SPLITS, parts, strict=True):
        check_range(f"{split} nodes", nodes, num_nodes)
    masks = [torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, nodes, True) for nodes in parts]
    return {f"{split}_mask": mask for split, mask in zip(SPLITS, masks, strict=True)}


def random_split(
    labels: Tensor, seed: int, *, per_class: int, validation: int, test: int | None = None
) -> dict[str, Tensor]:
    """Draw a split: in random order, the first `per_class` nodes of a class are for training.

    Of the others, the next ones in the order are to validate on, and those after them to test on, by default all. The
    masks have the names of the fields of `GraphData`.

    Example:
        >>> split = random_split(torch.tensor([0, 0, 1, 1, 1]), 0, per_class=1, validation=2)
        >>> [int(mask.sum()) for mask in split.values()]
        [2, 2, 1]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train = torch.cat([order[labels[order] == label][:per_class] for label in labels.unique()])
    rest = order[torch.isin(order, train, invert=True)]
    end = None if test is None else validation + test
    return split_masks(len(labels), train, rest[:validation], rest[validation:end])
