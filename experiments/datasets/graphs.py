"""Graphs for node classification: handwritten digits (embedded) and the citation graphs Cora and Citeseer."""

import os
import zipfile
import zlib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize
from torch import Tensor

GraphName = Literal["digits", "cora", "citeseer"]

_SPLITS = ("train", "val", "test")
_NUM_CLASSES = {"cora": 7, "citeseer": 6}
# Keys of an archive by the kind of their numbers; all have one dimension but edge_index.
_ARCHIVE_KEYS = {
    "x_data": np.floating,
    **dict.fromkeys(("x_indices", "x_indptr", "x_shape", "y", "edge_index"), np.integer),
    **dict.fromkeys((f"{split}_idx" for split in _SPLITS), np.integer),
    "y_known": np.bool_,
}
_KEY_OF_FIELD = {"features": "x_shape", "labels": "y"} | {f"{split}_mask": f"{split}_idx" for split in _SPLITS}
_OTHER_FOLDER = "--data-root DIR (the argument data_root) or the environment variable PYRO_ATTENTION_DATA"
_NEW_COPY = f"Replace the file by an intact copy, or name another folder by {_OTHER_FOLDER}."
# What zipfile and numpy raise on damaged files.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)


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
        num_classes: number of classes.
        images: [nodes, height, width] float32 pictures of the nodes for figures, where there are any.

    Raises:
        GraphDataError: see `check_graph`.
        TypeError: see `check_graph`.
    """

    name: str
    features: Tensor
    labels: Tensor
    edge_index: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    images: Tensor | None = None

    def __post_init__(self) -> None:
        check_graph(self)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    def to(self, device: torch.device | str) -> "GraphData":
        """Return a copy of the graph with every tensor on `device`."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = value.to(device)
        return replace(self, **values)


def check_graph(data: GraphData) -> None:
    """Check everything that `GraphData` promises.

    Args:
        data: the graph.

    Raises:
        GraphDataError: a ValueError that names the field, what was seen and what was expected.
        TypeError: a field is no tensor.
    """
    features, layouts = data.features, (torch.strided, torch.sparse_coo)
    _check_tensor("features", features, torch.float32, (None, None))
    _require(0 not in features.shape, "features", f"shape {list(features.shape)}", "a node and a feature")
    _require(features.layout in layouts, "features", str(features.layout), f"one of the layouts {layouts}")
    if features.is_sparse:
        _require(features.is_coalesced(), "features", "not coalesced", "features.coalesce()")
        features = features.values()
    _require(bool(features.isfinite().all()), "features", "NaN or infinite values", "finite values")
    _check_tensor("labels", data.labels, torch.int64, (data.num_nodes,))
    _check_range("labels", data.labels, data.num_classes)
    _check_edges(data.edge_index, data.num_nodes)
    taken = torch.zeros_like(data.labels, dtype=torch.bool)
    for field in ("train_mask", "val_mask", "test_mask"):
        mask = getattr(data, field)
        _check_tensor(field, mask, torch.bool, (data.num_nodes,))
        _require(bool(mask.any()), field, "an empty split", "at least one node")
        shared = int((taken & mask).sum())
        _require(shared == 0, field, f"{shared} nodes of an earlier split", "disjoint splits")
        taken |= mask
    if data.images is not None:
        _check_tensor("images", data.images, torch.float32, (data.num_nodes, None, None))


def _check_edges(edge_index: Tensor, num_nodes: int) -> None:
    field = "edge_index"
    _check_tensor(field, edge_index, torch.int64, (2, None))
    _check_range(field, edge_index, num_nodes)
    source, target = edge_index
    forward, backward = source * num_nodes + target, target * num_nodes + source
    loops = int((source == target).sum())
    _require(loops == 0, field, f"{loops} self loops", "none; the attention layer adds its own")
    repeated = forward.numel() - forward.unique().numel()
    _require(repeated == 0, field, f"{repeated} duplicate edges", "each edge once, edge_index.unique(dim=1)")
    single = int(torch.isin(forward, backward, invert=True).sum())
    expected = "both directions, torch.cat([edge_index, edge_index.flip(0)], 1).unique(dim=1)"
    _require(single == 0, field, f"{single} edges without their reverse", expected)


def _check_tensor(field: str, value: object, dtype: torch.dtype, shape: tuple[int | None, ...]) -> None:
    """Check dtype and shape, where a size of None stands for any."""
    expected = f"{dtype} of shape [{', '.join('any' if size is None else str(size) for size in shape)}]"
    if not isinstance(value, Tensor):
        raise TypeError(f"{field}: {type(value).__name__}; expected a torch.Tensor, {expected}")
    sizes = [have if want is None else want for want, have in zip(shape, value.shape, strict=False)]
    fits = value.dtype == dtype and value.dim() == len(shape) and sizes == list(value.shape)
    _require(fits, field, f"{value.dtype} of shape {list(value.shape)}", expected)


def _check_range(field: str, values: Tensor, limit: int) -> None:
    outside = values[(values < 0) | (values >= limit)]
    _require(outside.numel() == 0, field, f"{outside[:5].tolist()}", f"values from 0 to {limit - 1}")


def _require(holds: bool, field: str, seen: str, expected: str) -> None:
    if not holds:
        raise GraphDataError(field, seen, expected)


def load_graph(name: GraphName, *, data_root: Path | str | None = None, split_seed: int = 0) -> GraphData:
    """Load a graph for node classification.

    `digits` needs no file: scikit-learn's 1797 handwritten digits, each joined to its 10 nearest neighbours.
    `cora` and `citeseer` are the citation graphs with their public split and row-normalised features.

    Args:
        name: "digits", "cora" or "citeseer".
        data_root: folder that holds NAME.npz or planetoid/NAME.npz; by default $PYRO_ATTENTION_DATA, else
            ~/.cache/pyro_attention. `digits` does not look at it.
        split_seed: seed of the random split of `digits`; the others have one public split, seed 0.

    Returns:
        The graph, on the CPU.

    Raises:
        FileNotFoundError: the file is in none of the places looked at.
        ValueError: an unknown name, a seed for a fixed split, or a file that is damaged or of another format.

    Source:
        Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (from scikit-learn);
        Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016.
    """
    if name not in get_args(GraphName):
        raise ValueError(f"no graph is named {name!r}; expected one of {', '.join(get_args(GraphName))}")
    if name == "digits":
        return _digits(split_seed)
    if split_seed != 0:
        raise ValueError(f"split_seed={split_seed}, but the split of {name!r} is fixed; expected 0")
    path = _find_archive(name, data_root)
    try:
        return _graph_of_archive(name, _read_archive(path))
    except GraphDataError as error:
        key = _KEY_OF_FIELD.get(error.field, error.field)
        raise ValueError(f"{path}, key {key!r}: {error}. {_NEW_COPY}") from error


def _digits(split_seed: int, neighbours: int = 10, per_class: int = 20, validation: int = 500) -> GraphData:
    """Make the digits graph; in random order, the first `per_class` nodes of a class are for training."""
    digits = load_digits()
    pixels, labels = torch.from_numpy(digits.data), torch.from_numpy(digits.target).long()
    # Not scikit-learn's kneighbors_graph: it leaves the order of equally distant neighbours open. Distances
    # of whole-number pixels are exact in float64: with a stable sort every machine builds the same graph.
    distances = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf)
    nearest = distances.argsort(dim=1, stable=True)[:, :neighbours]
    edges = torch.stack([nearest.flatten(), torch.arange(len(labels)).repeat_interleave(neighbours)])

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(split_seed))
    train = torch.cat([order[labels[order] == label][:per_class] for label in labels.unique()])
    rest = order[torch.isin(order, train, invert=True)]
    splits = dict(zip(_SPLITS, (train, rest[:validation], rest[validation:]), strict=True))
    return GraphData(
        name="digits",
        features=(pixels / 16).float(),
        labels=labels,
        edge_index=torch.cat([edges, edges.flip(0)], 1).unique(dim=1),
        **{f"{split}_mask": _mask(nodes, len(labels)) for split, nodes in splits.items()},
        num_classes=10,
        images=torch.from_numpy(digits.images / 16).float(),
    )


def _mask(nodes: Tensor, num_nodes: int) -> Tensor:
    return torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)


def _find_archive(name: str, data_root: Path | str | None) -> Path:
    root = Path(data_root or os.environ.get("PYRO_ATTENTION_DATA") or "~/.cache/pyro_attention").expanduser()
    places = [root / f"{name}.npz", root / "planetoid" / f"{name}.npz"]
    for path in places:
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{name}.npz is missing; looked at {' and '.join(map(str, places))}; expected a numpy archive with "
        f"the keys {', '.join(_ARCHIVE_KEYS)}. Put it there, or name its folder by {_OTHER_FOLDER}."
    )


def _read_archive(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of one file and check what each is on its own."""
    with path.open("rb") as file:  # outside the try: a file that we may not read is not a damaged one
        try:
            if damaged := zipfile.ZipFile(file).testzip():  # numpy would parse damaged bytes first
                raise ValueError(f"bad checksum of {damaged}")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
        except _UNREADABLE as error:
            raise ValueError(f"{path}: {error}; expected a numpy archive without pickles. {_NEW_COPY}") from error
    for key, kind in _ARCHIVE_KEYS.items():
        _require(key in arrays, key, f"missing among {sorted(arrays)}", f"the keys {list(_ARCHIVE_KEYS)}")
        dtype, shape = arrays[key].dtype, arrays[key].shape
        fits = np.issubdtype(dtype, kind) and len(shape) == (2 if key == "edge_index" else 1)
        expected = f"{kind.__name__} in {'two dimensions' if key == 'edge_index' else 'one dimension'}"
        _require(fits, key, f"{dtype} of shape {list(shape)}", expected)
    return arrays


def _graph_of_archive(name: str, arrays: dict[str, np.ndarray]) -> GraphData:
    """Make the graph; here are only the checks that the finished graph no longer allows."""
    data, labels, known = arrays["x_data"], arrays["y"], arrays["y_known"]
    _require(bool(np.isfinite(data).all()), "x_data", "NaN or infinite values", "finite values")
    _require(known.shape == labels.shape, "y_known", f"{known.size} entries", f"{labels.size}, as many as in y")
    shape = tuple(arrays["x_shape"].tolist())
    try:
        matrix = csr_matrix((data, arrays["x_indices"], arrays["x_indptr"]), shape=shape)
        matrix.check_format(full_check=True)
    except ValueError as error:
        expected = "x_data, x_indices, x_indptr, x_shape of one CSR matrix [nodes, features]"
        raise GraphDataError("x_shape", str(error), expected) from error
    matrix.sum_duplicates()
    rows = normalize(matrix, norm="l1").tocoo()
    places, values = torch.from_numpy(np.stack([rows.row, rows.col])), torch.from_numpy(rows.data)
    masks = {}
    for split in _SPLITS:
        key, nodes = f"{split}_idx", torch.from_numpy(arrays[f"{split}_idx"]).long()
        _check_range(key, nodes, len(labels))
        unknown = int((~known[nodes]).sum())
        _require(unknown == 0, key, f"{unknown} nodes with y_known False", "nodes whose label is known")
        masks[f"{split}_mask"] = _mask(nodes, len(labels))
    return GraphData(
        name=name,
        features=torch.sparse_coo_tensor(places, values, shape, check_invariants=True).float().coalesce(),
        labels=torch.from_numpy(np.where(known, labels, 0)).long(),
        edge_index=torch.from_numpy(arrays["edge_index"]).long(),
        **masks,
        num_classes=_NUM_CLASSES[name],
    )
