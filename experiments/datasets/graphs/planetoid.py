"""Cora, Citeseer and PubMed from the original files of their public split, `ind.NAME.*`."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, issparse, vstack
from torch import Tensor

from experiments.datasets.graphs.data import GraphData, GraphDataError, require
from experiments.datasets.graphs.parts import row_normalised, to_mask
from experiments.datasets.graphs.planetoid_files import PARTS
from experiments.datasets.graphs.safe_pickle import read_pickle
from experiments.datasets.places import NEW_COPY
from experiments.datasets.untrusted import read_bytes, shown

__all__ = ["read_planetoid"]

# Which file a field of the graph is read from.
_PART_OF_FIELD = {"features": "allx", "labels": "ally", "edge_index": "graph"}
_PART_OF_FIELD |= {"train_mask": "y", "val_mask": "ally", "test_mask": "test.index"}
_VALIDATION = 500


def read_planetoid(folder: Path, name: str, *, num_classes: int) -> GraphData:
    """Read a graph from its eight original files.

    The nodes of allx come first, and of these the ones of x first; they are for training, the next 500 (or what there
    is) for validation. Line i of test.index is the node of row i of tx. A node in none of these files has no features
    and no label and is in no split. The keys of graph are nodes, its values lists of neighbours; either direction of
    an edge is enough, repeated edges and self loops are dropped. The rows of the features are normalised.

    Raises:
        OSError: a file cannot be opened.
        ValueError: a file is damaged, of another format or does not go with the others; the message names it.

    Source:
        Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016; order of the
        nodes and validation set by Kipf and Welling, Semi-Supervised Classification with Graph Convolutional
        Networks, 2017.
    """
    paths = {part: folder / f"ind.{name}.{part}" for part in PARTS}
    try:
        return _graph(name, paths, num_classes)
    except GraphDataError as error:
        field, seen, expected = error.args
        path = paths[_PART_OF_FIELD.get(field, field)]
        raise ValueError(f"{path}: {seen}; expected {expected}. {NEW_COPY}") from error


def _graph(name: str, paths: dict[str, Path], num_classes: int) -> GraphData:
    features, labels = _features(paths), _labels(paths, num_classes)
    for part, one_hot in (("x", "y"), ("tx", "ty"), ("allx", "ally")):
        found, wanted = len(labels[one_hot]), features[part].shape[0]
        require(found == wanted, one_hot, f"{found} rows", f"{wanted}, as many as in {paths[part].name}")
    training, known, tested = (len(labels[part]) for part in ("y", "ally", "ty"))
    seen = f"{training} rows, more than the {known} of {paths['ally'].name}"
    require(training <= known, "y", seen, "the first nodes of those")

    graph = read_pickle(paths["graph"])
    require(isinstance(graph, dict), "graph", type(graph).__name__, "a dictionary of lists of neighbours")
    # Nodes without features are keys of graph, too; without such nodes the keys are not needed to count.
    num_nodes = max(known + tested, len(graph))
    test = _test_nodes(paths["test.index"], known, num_nodes, tested)
    # Of each node the row of its features among those of allx, tx and one row of zeros.
    rows = np.full(num_nodes, known + tested)
    rows[:known], rows[test] = np.arange(known), known + np.arange(tested)
    zeros = csr_matrix((1, features["allx"].shape[1]), dtype=features["allx"].dtype)
    targets = torch.zeros(num_nodes, dtype=torch.int64)
    targets[:known], targets[test] = labels["ally"], labels["ty"]
    return GraphData(
        name=name,
        features=row_normalised(vstack([features["allx"], features["tx"], zeros], format="csr")[rows]),
        labels=targets,
        edge_index=_edges(graph, num_nodes),
        train_mask=to_mask(torch.arange(training), num_nodes),
        val_mask=to_mask(torch.arange(training, min(training + _VALIDATION, known)), num_nodes),
        test_mask=to_mask(test, num_nodes),
        num_classes=num_classes,
    )


def _features(paths: dict[str, Path]) -> dict[str, csr_matrix]:
    matrices = {}
    for part in ("x", "tx", "allx"):
        matrix = read_pickle(paths[part])
        require(issparse(matrix), part, type(matrix).__name__, "a scipy.sparse.csr_matrix")
        require(bool(np.isfinite(matrix.data).all()), part, "NaN or infinite values", "finite values")
        matrix.sum_duplicates()
        matrices[part] = matrix if np.issubdtype(matrix.dtype, np.floating) else matrix.astype(np.float32)
    columns = matrices["allx"].shape[1]
    for part in ("x", "tx"):
        found = matrices[part].shape[1]
        require(found == columns, part, f"{found} columns", f"{columns}, as many as in {paths['allx'].name}")
    return matrices


def _labels(paths: dict[str, Path], classes: int) -> dict[str, Tensor]:
    labels = {}
    for part in ("y", "ty", "ally"):
        one_hot = read_pickle(paths[part])
        require(isinstance(one_hot, np.ndarray), part, type(one_hot).__name__, "a numpy array")
        seen, expected = f"shape {list(one_hot.shape)}", f"[nodes, {classes}], one column a class"
        require(one_hot.ndim == 2 and one_hot.shape[1] == classes, part, seen, expected)
        wrong = ~(((one_hot == 0) | (one_hot == 1)).all(1) & ((one_hot == 1).sum(1) == 1))
        first = one_hot[wrong][:1].tolist()
        require(not wrong.any(), part, f"{wrong.sum()} rows such as {first}", "a single 1 among zeros in every row")
        labels[part] = torch.from_numpy(one_hot.argmax(1)).long()
    return labels


def _test_nodes(path: Path, start: int, stop: int, count: int) -> Tensor:
    """Read test.index: one whole number a line, the nodes of the rows of tx."""
    part, nodes = "test.index", []
    lines = read_bytes(path, expected="one whole number a line").decode("latin1").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            nodes.append(int(line))
        except ValueError as error:
            raise GraphDataError(part, f"{shown(line)} in line {number}", "one whole number a line") from error
    outside = [node for node in nodes if not start <= node < stop]
    expected = f"nodes from {start} (the number of rows of allx) to {stop - 1}"
    require(not outside, part, f"[{', '.join(map(shown, outside[:5]))}]", expected)
    repeated = len(nodes) - len(set(nodes))
    require(repeated == 0, part, f"{repeated} repeated nodes", "each node once")
    require(len(nodes) == count, part, f"{len(nodes)} lines", f"{count}, one a row of tx")
    return torch.tensor(nodes, dtype=torch.int64)


def _edges(graph: dict[Any, Any], num_nodes: int) -> Tensor:
    for node, others in graph.items():
        seen = f"{type(others).__name__} of node {shown(node)}"
        require(isinstance(others, list), "graph", seen, "a list of neighbours")
    ids = chain(graph, chain.from_iterable(graph.values()))
    wrong = [node for node in ids if type(node) is not int or not 0 <= node < num_nodes]
    seen = f"node [{', '.join(map(shown, wrong[:1]))}] and {len(wrong)} such in all"
    require(not wrong, "graph", seen, f"whole numbers from 0 to {num_nodes - 1}")
    pairs = [(node, other) for node, others in graph.items() for other in others if node != other]
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
