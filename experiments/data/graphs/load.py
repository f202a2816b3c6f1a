"""Graphs for node classification: published graphs by name, and your own graph from a file.

Your own graph is a numpy archive (.npz, without pickles):

======================================== ============================================================================
key                                      content
======================================== ============================================================================
y                                        integers [nodes]: classes from 0, and -1 where the class is not known
edge_index                               integers [2, edges]: sources in row 0, targets in row 1
x                                        numbers [nodes, features]
x_data, x_indices, x_indptr, x_shape     instead of x: the same as one CSR matrix
train_mask, val_mask, test_mask          truth values [nodes], or [splits, nodes], of which one split is chosen; without
                                         masks half of the known nodes, drawn at random, are for training, a quarter
                                         to validate and the rest to test on
metric                                   optional: the text accuracy, or roc_auc where there are two classes
======================================== ============================================================================

Edges are read as undirected: both directions of an edge, once, without self loops. Features stay as they are.
"""

import codecs
import io
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize
from torch import Tensor

from experiments.data.dataset_names import Citations, GraphName, Heterophilous
from experiments.data.storage import NEW_COPY, SPLITS, data_folder, fetch_missing, first_file, read_arrays
from experiments.files import reading
from pyro_attention.registry import Registry
from pyro_attention.text_lines import read_lines

MetricName = Literal["accuracy", "roc_auc"]


# eq=False: comparing two graphs field by field would ask a tensor for its truth value.
@dataclass(frozen=True, eq=False)
class GraphData:
    """Graph whose nodes are to be classified.

    The metric judges a network: its accuracy, or the area under the ROC curve of the second of two classes. Validation
    and test nodes must then have both classes.

    Raises:
        ValueError: Numbers, classes or splits do not fit; the message names the field.
    """

    name: str  # name of the data set
    features: Tensor  # [nodes, features] float32, dense or coalesced `torch.sparse_coo`
    labels: Tensor  # [nodes] int64 in [0, num_classes); a node in no mask may carry a placeholder
    edge_index: Tensor  # [2, edges] int64, sources first; both directions of every edge, no loops, no duplicates
    train_mask: Tensor  # [nodes] bool, nodes to train on; the three masks are disjoint and none is empty
    val_mask: Tensor  # [nodes] bool, nodes to validate on
    test_mask: Tensor  # [nodes] bool, nodes to test on
    num_classes: int  # number of classes
    metric: MetricName = "accuracy"

    def __post_init__(self) -> None:
        shape = tuple(self.features.shape)
        if len(shape) != 2 or not shape[1] or shape[0] != len(self.labels):
            raise ValueError(
                f"features: shape {shape}; expected ({len(self.labels)}, features), a row for each node of the classes"
            )
        if self.num_classes < 2:
            raise ValueError(f"num_classes: {self.num_classes}; expected two or more, as one needs no network")
        values = self.features.values() if self.features.is_sparse else self.features
        if not values.isfinite().all():
            raise ValueError("features: NaN or infinite values; expected finite values")
        check_range("labels", self.labels, self.num_classes)
        if self.metric not in get_args(MetricName):
            raise ValueError(f"metric: {self.metric!r}; expected one of {get_args(MetricName)}")
        taken = torch.zeros_like(self.labels, dtype=torch.bool)
        for field in (f"{split}_mask" for split in SPLITS):
            mask = getattr(self, field)
            if not mask.any() or (taken & mask).any():
                raise ValueError(
                    f"{field}: no nodes, or nodes of an earlier split; expected nodes that no other split has"
                )
            taken |= mask
            classes = self.labels[mask].unique().tolist()
            if self.metric == "roc_auc" and field != "train_mask" and classes != [0, 1]:
                raise ValueError(f"{field}: classes {classes}; expected both of 2, for roc_auc")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    def to(self, device: torch.device | str) -> "GraphData":
        """Return a copy of the graph with all tensors on `device`."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def check_range(field: str, values: Tensor, limit: int) -> None:
    """Raise ValueError unless all values are from 0 to limit - 1."""
    outside = values[(values < 0) | (values >= limit)]
    if outside.numel():
        raise ValueError(f"{field}: {outside[:5].tolist()}; expected values from 0 to {limit - 1}")


def sparse_features(matrix: csr_matrix) -> Tensor:
    """Return the matrix as a coalesced float32 `torch.sparse_coo`."""
    matrix.check_format(full_check=True)
    matrix.sum_duplicates()
    rows = matrix.tocoo()
    indices = torch.from_numpy(np.stack([rows.row, rows.col]))
    values = torch.from_numpy(rows.data.astype(np.float32))
    return torch.sparse_coo_tensor(indices, values, rows.shape, check_invariants=True).coalesce()


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


def split_masks(num_nodes: int, *parts: Tensor) -> dict[str, Any]:
    """Return the masks of a graph, by their names: True at the nodes to train, to validate and to test on."""
    masks = [torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, nodes, True) for nodes in parts]
    return {f"{split}_mask": mask for split, mask in zip(SPLITS, masks, strict=True)}


def random_split(labels: Tensor, seed: int, *, per_class: int, validation: int) -> dict[str, Any]:
    """Draw a split in which the first `per_class` nodes of each class, in random order, are for training.

    The next nodes in the order are to validate on, and the rest to test on. The masks have the names of the fields of
    `GraphData`.

    Example:
        >>> split = random_split(torch.tensor([0, 0, 1, 1, 1]), 0, per_class=1, validation=2)
        >>> [int(mask.sum()) for mask in split.values()]
        [2, 2, 1]
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train = torch.cat([order[labels[order] == label][:per_class] for label in labels.unique()])
    rest = order[torch.isin(order, train, invert=True)]
    return split_masks(len(labels), train, rest[:validation], rest[validation:])


_CORRECT = "correct the file; experiments/data/graphs/load.py lists its keys"
# Readers: functions of the folder of the data sets and the seed of the split that return the graph.
GRAPHS: Registry[Callable[[Path, int], GraphData]] = Registry("graph")


def load_graph(name: GraphName, *, data_root: Path | str | None = None, split_seed: int = 0) -> GraphData:
    """Load a graph for node classification; its reader describes the files.

    ``split_seed`` is the seed of a random split, or the number of the split where a graph has several fixed ones. It is
    0 where the graph has one split.
    """
    return GRAPHS[name](data_folder(data_root), split_seed)


def read_own_graph(path: Path, *, split_seed: int = 0, remedy: str = _CORRECT) -> GraphData:
    """Read a graph with the keys above; its name is that of the file, and the largest number in y is its last class.

    ``split_seed`` is the number of the split where the file holds several, and the seed of a random split where the
    file holds none. Errors name the file and the key.
    """
    arrays = read_arrays(path, remedy)
    _check_split_number(arrays, split_seed)
    with reading(path, "a graph with y, edge_index, x or x_data, x_indices, x_indptr and x_shape, and masks", remedy):
        labels, edges = _integers(arrays, "y"), _integers(arrays, "edge_index")
        if labels.dim() != 1:
            raise ValueError(f"y: shape {tuple(labels.shape)}; expected (nodes,), the class of every node")
        if edges.dim() != 2 or len(edges) != 2:
            raise ValueError(
                f"edge_index: shape {tuple(edges.shape)}; expected (2, edges), sources in row 0 and targets in row 1"
            )
        if (labels < -1).any():
            raise ValueError(f"y: the class {int(labels.min())}; expected classes from 0, and -1 where unknown")
        if "x" in arrays:
            features = torch.from_numpy(arrays["x"].astype(np.float32))
        else:
            parts = [arrays[f"x_{part}"] for part in ("data", "indices", "indptr")]
            matrix = csr_matrix(tuple(parts), shape=tuple(arrays["x_shape"].tolist()))
            features = sparse_features(matrix)
        return GraphData(
            name=path.stem,
            features=features,
            labels=labels.clamp(min=0),
            edge_index=both_directions(edges, len(labels)),
            **_split(arrays, labels, split_seed),
            num_classes=int(labels.max()) + 1,
            metric=np.asarray(arrays.get("metric", "accuracy")).item(),
        )


def _integers(arrays: dict[str, np.ndarray], key: str) -> Tensor:
    if arrays[key].dtype.kind not in "biu":
        raise ValueError(f"{key}: {arrays[key].dtype}; expected integers")
    return torch.from_numpy(arrays[key].astype(np.int64))


def _check_split_number(arrays: dict[str, np.ndarray], split_seed: int) -> None:
    """Raise ValueError where the file, which is as it should be, has no split of this number."""
    masks = arrays.get("train_mask")
    splits = 1 if masks is None or masks.ndim != 2 else len(masks)
    if masks is not None and not 0 <= split_seed < splits:
        raise ValueError(
            f"split_seed: {split_seed}; expected 0 to {splits - 1}, the graph has {splits} fixed splits; pass another "
            f"--split-seed"
        )


def _split(arrays: dict[str, np.ndarray], labels: Tensor, split_seed: int) -> dict[str, Tensor]:
    """Return the masks of the split with this number, or draw a split where the file holds none."""
    names = [f"{split}_mask" for split in SPLITS]
    missing = [name for name in names if name not in arrays]
    if len(missing) == len(names):
        return _halves(labels, split_seed)
    if missing:
        raise ValueError(f"no {', '.join(missing)}; expected all of {', '.join(names)}, or none of them")
    masks = {name: _masks(arrays[name], name, len(labels)) for name in names}
    for name, of_split in masks.items():
        if (labels[of_split[split_seed]] < 0).any():
            raise ValueError(f"{name}: nodes of unknown class; expected nodes whose class is known")
    return {name: of_split[split_seed].clone() for name, of_split in masks.items()}


def _masks(values: np.ndarray, name: str, nodes: int) -> Tensor:
    """Return the masks of all splits, ``[splits, nodes]``; 0 and 1 are truth values, too."""
    if values.ndim not in (1, 2) or values.shape[-1] != nodes:
        raise ValueError(f"{name}: shape {values.shape}; expected ({nodes},) or (splits, {nodes})")
    if values.dtype.kind not in "biu" or not np.isin(values, (0, 1)).all():
        raise ValueError(f"{name}: {values.dtype} with other values than 0 and 1; expected truth values")
    return torch.from_numpy(np.atleast_2d(values).astype(bool))


def _halves(labels: Tensor, seed: int) -> dict[str, Tensor]:
    known = (labels >= 0).nonzero().squeeze(1)
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    half, end = len(order) // 2, len(order) * 3 // 4
    return split_masks(len(labels), order[:half], order[half:end], order[end:])


# Data sets


@GRAPHS.register("digits")
def read_digits(_: Path, split_seed: int) -> GraphData:
    """Join each of scikit-learn's 1797 handwritten digits to its 10 nearest neighbors; this needs no file.

    The split is random: 20 nodes of a class for training, 500 for validation, the others for testing.

    Source:
        Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
    """
    digits = load_digits()
    pixels, labels = torch.from_numpy(digits.data), torch.from_numpy(digits.target).long()
    # Not scikit-learn's kneighbors_graph: it leaves the order of equally distant neighbors open. Distances
    # of whole-number pixels are exact in float64: with a stable sort every machine builds the same graph.
    nearest = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf).argsort(dim=1, stable=True)[:, :10]
    edges = torch.stack([nearest.flatten(), torch.arange(len(labels)).repeat_interleave(10)])
    return GraphData(
        name="digits",
        features=(pixels / 16).float(),
        labels=labels,
        edge_index=both_directions(edges, len(labels)),
        **random_split(labels, split_seed, per_class=20, validation=500),
        num_classes=10,
    )


def read_heterophilous(root: Path, split_seed: int, *, name: str) -> GraphData:
    """Read a graph whose neighbors often have different classes; split_seed is the number of one of ten fixed splits.

    The file is heterophilous/NAME.npz, with masks [10, nodes]. A network on Minesweeper is judged by ROC AUC, because
    four of five nodes are no mine. The filtered versions of Chameleon and Squirrel lack the duplicate nodes that join
    training and test nodes in the original ones.

    Source:
        Pei et al., Geom-GCN, 2020 (actor, texas). Platonov et al., A critical look at the evaluation of GNNs under
        heterophily, 2023 (the others).
    """
    path = root / "heterophilous" / f"{name}.npz"
    path = first_file(
        [path], "a numpy archive with the keys that experiments/data/graphs/load.py lists", "heterophilous"
    )
    graph = read_own_graph(path, split_seed=split_seed, remedy=NEW_COPY)
    return replace(graph, metric="roc_auc") if name == "minesweeper" else graph


for _name in get_args(Heterophilous):
    GRAPHS.register(_name)(partial(read_heterophilous, name=_name))


# Cora, Citeseer and PubMed

ADDRESS = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_PARTS = ("allx", "tx", "y", "ally", "ty", "graph")


def read_citations(root: Path, split_seed: int, *, name: str) -> GraphData:
    """Read Cora, Citeseer or PubMed with the public split; the rows of the features are normalized.

    The files are the original ones, planetoid/raw/ind.NAME.*; missing files are downloaded from the repository of the
    authors of the split.

    Source:
        Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016.
    """
    if split_seed != 0:
        raise ValueError(f"split_seed: {split_seed}; expected 0, the split of {name} is fixed")
    folder = root / "planetoid" / "raw"
    fetch_missing(folder, [f"ind.{name}.{part}" for part in (*_PARTS, "test.index")], ADDRESS)
    return read_planetoid(folder, name)


for _name in get_args(Citations):
    GRAPHS.register(_name)(partial(read_citations, name=_name))


# Functions and classes that old pickles of arrays, matrices and dictionaries of lists name; their modules have moved.
_UNPICKLED = {
    "_reconstruct": lambda *_: np.empty(0),  # an array to be given its state
    "ndarray": None,  # only an argument of _reconstruct
    "_frombuffer": np.empty(1).__reduce_ex__(5)[0],
    "dtype": np.dtype,
    "csr_matrix": csr_matrix,
    "encode": codecs.encode,  # of Python 2's bytes
    "defaultdict": defaultdict,
    "list": list,
}


class _Unpickler(pickle.Unpickler):
    """Reader of pickles that makes arrays, sparse matrices and dictionaries, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _UNPICKLED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return _UNPICKLED[name]


def read_pickle(path: Path) -> Any:
    """Read an array, a sparse matrix or a dictionary of lists that Python 2 has pickled; refuse anything else."""
    with reading(path, "a pickle of an array, a matrix or a dictionary of lists", NEW_COPY):
        return _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()


def read_planetoid(folder: Path, name: str) -> GraphData:
    """Read a graph from its original files.

    The nodes of allx come first: as many as y has rows are for training, and the next 500 (or the rest, if there are
    fewer) for validation. Line i of test.index is the node of row i of tx. A node in none of these files has no
    features and no label and is in no split. The keys of graph are nodes, its values lists of neighbors.

    Source:
        https://github.com/kimiyoung/planetoid/tree/master/data; order of the nodes and validation set by Kipf and
        Welling, Semi-Supervised Classification with Graph Convolutional Networks, 2017.
    """
    stem = folder / f"ind.{name}"
    allx, tx, y, ally, ty, graph = (read_pickle(stem.with_name(f"{stem.name}.{part}")) for part in _PARTS)
    with reading(f"{stem}.*", "the files of one graph as they are published", NEW_COPY):
        test = torch.tensor([int(line) for _, line in read_lines(f"{stem}.test.index")])
        known, tested = len(ally), len(ty)
        # Nodes without features are keys of graph, too.
        nodes = max(known + tested, len(graph))
        # The row of every node's features among the rows of allx, tx and one row of zeros.
        rows = np.full(nodes, known + tested)
        rows[:known], rows[test] = np.arange(known), known + np.arange(tested)
        matrices = [csr_matrix((part.data, part.indices, part.indptr), shape=part.shape) for part in (allx, tx)]
        matrix = vstack([*matrices, csr_matrix((1, allx.shape[1]), dtype=allx.dtype)], format="csr")
        labels = torch.zeros(nodes, dtype=torch.int64)
        labels[:known], labels[test] = torch.from_numpy(ally.argmax(1)), torch.from_numpy(ty.argmax(1))
        edges = torch.tensor([(node, neighbor) for node, neighbors in graph.items() for neighbor in neighbors]).T
        parts = torch.arange(len(y)), torch.arange(len(y), min(len(y) + 500, known)), test
        return GraphData(
            name=name,
            features=sparse_features(normalize(matrix[rows], norm="l1")),
            labels=labels,
            edge_index=both_directions(edges, nodes),
            **split_masks(nodes, *parts),
            num_classes=ally.shape[1],
        )


# Harder versions of a graph: fewer labels, noise in the features, edges that do not belong


def limit_labels(data: GraphData, per_class: int, *, seed: int = 0) -> GraphData:
    """Keep a random subset of the training nodes of each class; a smaller one is part of a larger one of the same seed.

    A class with fewer nodes keeps all of them: Texas has a class of one node.
    """
    labels, nodes = data.labels.cpu(), data.train_mask.cpu().nonzero().flatten()
    nodes = nodes[torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))]
    chosen = torch.cat([nodes[labels[nodes] == label][:per_class] for label in range(data.num_classes)])
    mask = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill_(0, chosen, True)
    return replace(data, train_mask=mask.to(data.train_mask.device))


def add_feature_noise(data: GraphData, fraction: float, *, seed: int = 0) -> GraphData:
    """Move a fraction of the features that are not zero to other columns of their rows.

    The new columns are uniformly random among the columns of the row in which no feature stays. No two features share a
    column, and no feature returns to its old one. Values move along, so the rows keep their sums.
    """
    features, generator = data.features.cpu().to_dense(), torch.Generator().manual_seed(seed)
    rows, columns = indices = features.nonzero().T
    moving = torch.zeros(len(rows), dtype=torch.bool)
    moving[torch.randperm(len(rows), generator=generator)[: round(fraction * len(rows))]] = True
    stays = torch.zeros_like(features, dtype=torch.bool)
    stays[indices[:, ~moving].unbind()] = True
    movers = rows[moving]
    # ascending rows: the first mover of a row is found by a search
    rank, values = torch.arange(len(movers)) - torch.searchsorted(movers, movers), features[rows, columns]
    new, pending = columns[moving], movers.unique()
    stuck = (stays.sum(1) + 1 == features.shape[1]) & (movers.bincount(minlength=len(features)) == 1)
    if stuck.any():
        raise ValueError(
            f"fraction={fraction}: row {int(stuck.nonzero()[0])} of the features of {data.name!r} has no zero column "
            f"to which its single feature could move; choose another fraction or seed"
        )
    while pending.numel():  # until no feature of a row is in its old column
        keys = torch.rand(len(pending), features.shape[1], generator=generator).masked_fill(stays[pending], torch.inf)
        drawn = torch.isin(movers, pending)
        order = keys.argsort(dim=1)  # what is taken comes last
        new[drawn] = order[torch.searchsorted(pending, movers[drawn]), rank[drawn]]
        pending = movers[new == columns[moving]].unique()
    columns = columns.masked_scatter(moving, new)
    noisy = torch.zeros_like(features).index_put_((rows, columns), values)
    return replace(
        data, features=(noisy.to_sparse_coo() if data.features.is_sparse else noisy).to(data.features.device)
    )


def add_edge_noise(data: GraphData, fraction: float, *, seed: int = 0) -> GraphData:
    """Add random new edges in both directions, without self loops; a fraction of 1 doubles the number of edges."""
    low, high = data.edge_index[:, data.edge_index[0] < data.edge_index[1]].cpu()
    number = round(fraction * len(low))
    # Pairs are counted 01, 02, 12, 03, 13, 23...: those with the larger node j start at j (j - 1) / 2.
    nodes = torch.arange(data.num_nodes)
    starts = nodes * (nodes - 1) // 2
    taken = (starts[high] + low).sort().values
    room = data.num_nodes * (data.num_nodes - 1) // 2 - len(taken)
    if number > room:
        raise ValueError(
            f"fraction={fraction} of the {len(low)} edges of {data.name!r} is {number} new edges, but only {room} "
            f"pairs of nodes have no edge; expected a fraction of at most {room / max(len(low), 1):.4g}"
        )
    free = _sample(room, number, torch.Generator().manual_seed(seed))
    # The free pair of rank r comes after as many taken pairs as have at most r free pairs before them.
    pairs = free + torch.searchsorted(taken - torch.arange(len(taken)), free, right=True)
    high = torch.searchsorted(starts, pairs, right=True) - 1
    new = torch.stack([pairs - starts[high], high]).to(data.edge_index.device)
    return replace(data, edge_index=torch.cat([data.edge_index, new, new.flip(0)], 1))


def _sample(total: int, number: int, generator: torch.Generator) -> Tensor:
    """Draw distinct whole numbers below ``total``, in random order; the memory grows with their number alone."""
    if 4 * number > total:
        return torch.randperm(total, generator=generator)[:number]
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < number:
        drawn = torch.randint(total, (2 * number,), generator=generator).unique()
    return drawn[torch.randperm(len(drawn), generator=generator)[:number]]
