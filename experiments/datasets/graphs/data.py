"""A graph whose nodes are to be classified, and the checks of everything that it promises."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pyro_attention.registry import Registry

__all__ = ["GRAPHS", "GraphData", "GraphDataError", "MetricName", "check_graph", "check_range", "require"]

MetricName = Literal["accuracy", "roc_auc"]


class GraphDataError(ValueError):
    """A field of `GraphData`, or a key of its file, does not hold what it should; `field` names it."""

    def __init__(self, field: str, seen: str, expected: str) -> None:
        super().__init__(field, seen, expected)
        self.field = field

    def __str__(self) -> str:
        return "{}: {}; expected {}".format(*self.args)


# eq=False: comparing two graphs field by field would ask a tensor for its truth value.
@dataclass(frozen=True, eq=False)
class GraphData:
    """One graph whose nodes are to be classified; `check_graph` runs when it is made.

    Args:
        name: name of the data set.
        features: [nodes, features] float32, dense or coalesced `torch.sparse_coo`.
        labels: [nodes] int64 in [0, num_classes); a node in no mask may carry a placeholder.
        edge_index: [2, edges] int64, sources in row 0 and targets in row 1, both directions of every edge,
            no self loops, no duplicates.
        train_mask: [nodes] bool, nodes to train on; the three masks are disjoint and none is empty.
        val_mask: [nodes] bool, nodes to validate on.
        test_mask: [nodes] bool, nodes to test on.
        num_classes: number of classes, 1 at least.
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
        check_graph(self)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    def to(self, device: torch.device | str) -> "GraphData":
        """Return a copy of the graph with every tensor on `device`."""
        moved: dict[str, Any] = {name: value.to(device) for name, value in _tensors(self).items()}
        return replace(self, **moved)


def _tensors(data: GraphData) -> dict[str, Tensor]:
    return {name: value for name, value in vars(data).items() if isinstance(value, Tensor)}


# From the folder of the data sets and the seed of the split to the graph.
GRAPHS: Registry[Callable[[Path, int], GraphData]] = Registry("graph")


def check_graph(data: GraphData) -> None:
    """Raise GraphDataError unless all holds that `GraphData` promises; TypeError for a field that is no tensor."""
    features, classes, layouts = data.features, data.num_classes, (torch.strided, torch.sparse_coo)
    _check_tensor("features", features, torch.float32, (None, None))
    whole = isinstance(classes, int) and not isinstance(classes, bool) and classes >= 1
    require(whole, "num_classes", repr(classes), "a whole number from 1")
    for field, value in _tensors(data).items():
        seen, expected = str(value.device), f"{features.device}, where the features are"
        require(value.device == features.device, field, seen, expected)
    require(0 not in features.shape, "features", f"shape {list(features.shape)}", "a node and a feature")
    require(features.layout in layouts, "features", str(features.layout), f"one of the layouts {layouts}")
    if features.is_sparse:
        features = _sparse_values(features)
    require(bool(features.isfinite().all()), "features", "NaN or infinite values", "finite values")
    _check_tensor("labels", data.labels, torch.int64, (data.num_nodes,))
    check_range("labels", data.labels, data.num_classes)
    _check_edges(data.edge_index, data.num_nodes)
    taken = torch.zeros_like(data.labels, dtype=torch.bool)
    for field in ("train_mask", "val_mask", "test_mask"):
        mask = getattr(data, field)
        _check_tensor(field, mask, torch.bool, (data.num_nodes,))
        require(bool(mask.any()), field, "an empty split", "at least one node")
        shared = int((taken & mask).sum())
        require(shared == 0, field, f"{shared} nodes of an earlier split", "disjoint splits")
        taken |= mask
    _check_metric(data)
    if data.images is not None:
        _check_tensor("images", data.images, torch.float32, (data.num_nodes, None, None))
        require(bool(data.images.isfinite().all()), "images", "NaN or infinite values", "finite values")


def _check_metric(data: GraphData) -> None:
    metrics = get_args(MetricName)
    require(data.metric in metrics, "metric", repr(data.metric), f"one of {', '.join(metrics)}")
    if data.metric == "roc_auc":
        require(data.num_classes == 2, "metric", f"roc_auc of {data.num_classes} classes", "2 classes, or accuracy")
        for field in ("val_mask", "test_mask"):
            found = data.labels[getattr(data, field)].unique().tolist()
            require(len(found) == 2, field, f"nodes of class {found[0]} alone", "nodes of both classes, for roc_auc")


def _sparse_values(features: Tensor) -> Tensor:
    """The stored values of sparse features, after a check that each has a place; torch itself does not look."""
    require(features.sparse_dim() == 2, "features", f"{features.sparse_dim()} sparse dimensions", "2")
    require(features.is_coalesced(), "features", "not coalesced", "features.coalesce()")
    for places, size in zip(features.indices(), features.shape, strict=True):
        check_range("features", places, size)
    return features.values()


def _check_edges(edge_index: Tensor, num_nodes: int) -> None:
    field = "edge_index"
    _check_tensor(field, edge_index, torch.int64, (2, None))
    check_range(field, edge_index, num_nodes)
    source, target = edge_index
    forward, backward = source * num_nodes + target, target * num_nodes + source
    loops = int((source == target).sum())
    require(loops == 0, field, f"{loops} self loops", "none; the attention layer adds its own")
    repeated = forward.numel() - forward.unique().numel()
    require(repeated == 0, field, f"{repeated} duplicate edges", "each edge once, edge_index.unique(dim=1)")
    single = int(torch.isin(forward, backward, invert=True).sum())
    expected = "both directions, torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)"
    require(single == 0, field, f"{single} edges without their reverse", expected)


def _check_tensor(field: str, value: object, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Check dtype and shape, where a size of None stands for any."""
    expected = f"{dtype} of shape [{', '.join('any' if size is None else str(size) for size in shape)}]"
    if not isinstance(value, Tensor):
        raise TypeError(f"{field}: {type(value).__name__}; expected a torch.Tensor, {expected}")
    sizes = [have if want is None else want for want, have in zip(shape, value.shape, strict=False)]
    fits = value.dtype == dtype and value.dim() == len(shape) and sizes == list(value.shape)
    require(fits, field, f"{value.dtype} of shape {list(value.shape)}", expected)


def check_range(field: str, values: Tensor, limit: int) -> None:
    """Raise GraphDataError unless all values are from 0 to limit - 1."""
    outside = values[(values < 0) | (values >= limit)]
    require(outside.numel() == 0, field, f"{outside[:5].tolist()}", f"values from 0 to {limit - 1}")


def require(holds: bool, field: str, seen: str, expected: str) -> None:
    """Raise GraphDataError unless the condition holds."""
    if not holds:
        raise GraphDataError(field, seen, expected)
