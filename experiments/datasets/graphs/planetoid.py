"""Cora, Citeseer and PubMed from the original files of their public split, `ind.NAME.*`, fetched when missing."""

import codecs
import io
import pickle
from collections import defaultdict
from itertools import chain
from pathlib import Path
from reprlib import repr as shown
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from experiments.datasets.fetch import complete_folder
from experiments.datasets.graphs.data import GraphData, GraphDataError, require
from experiments.datasets.graphs.parts import row_normalised, to_mask
from experiments.datasets.places import NEW_COPY, OTHER_FOLDER
from experiments.files import reading

__all__ = ["SHA256", "find_planetoid", "read_planetoid"]

ADDRESS = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
# Checksums of the published files: those of Cora and Citeseer were computed from copies; PubMed's are those on which
# four public lists agree, one of them the Git LFS pointers in github.com/D61-IA/FisherGCN, data/ind.pubmed.*.
SHA256 = {
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}
# Which file a field of the graph is read from.
_PART_OF_FIELD = {"features": "allx", "labels": "ally", "edge_index": "graph"}
_PART_OF_FIELD |= {"train_mask": "y", "val_mask": "ally", "test_mask": "test.index"}
_VALIDATION = 500


def find_planetoid(root: Path, name: str) -> Path:
    """Return the folder of the files `ind.NAME.*`: the first that holds any, else planetoid/raw; fetch missing ones.

    Raises:
        FileNotFoundError, ValueError, UserError: see `complete_folder`.

    Source:
        https://github.com/kimiyoung/planetoid/tree/master/data
    """
    names = [f"ind.{name}.{part}" for part in _PARTS]
    folders = [root / "planetoid" / "raw", root / "planetoid", root / "raw", root]
    folder = next((folder for folder in folders if any((folder / file).is_file() for file in names)), folders[0])
    remedy = (
        f"Looked at {', '.join(map(str, folders))}. Fetch {', '.join(names)} from {ADDRESS} and put them there, or "
        f"name their folder by {OTHER_FOLDER}."
    )
    complete_folder(folder, names, ADDRESS, SHA256, remedy=remedy)
    return folder


# What old pickles of arrays, matrices and dictionaries of lists ask for; the modules have moved between releases.
_MADE = {
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
    """Makes arrays, sparse matrices and dictionaries, and nothing else that a pickle asks for."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in _MADE:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return _MADE[name]


def _read_pickle(path: Path, kind: type, expected: str) -> Any:
    with reading(path, f"a pickle of {expected}"):
        made = _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        if not isinstance(made, kind):
            raise ValueError(f"it holds {type(made).__name__}")
        return made


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
    paths = {part: folder / f"ind.{name}.{part}" for part in _PARTS}
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

    graph = _read_pickle(paths["graph"], dict, "a dictionary of lists of neighbours")
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
        with reading(paths[part], "a whole matrix"):
            made = _read_pickle(paths[part], csr_matrix, "a scipy.sparse.csr_matrix")
            matrix = csr_matrix((made.data, made.indices, made.indptr), shape=made.shape)
            matrix.check_format(full_check=True)
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
        one_hot = _read_pickle(paths[part], np.ndarray, "a numpy array")
        seen, expected = f"shape {list(one_hot.shape)}", f"[nodes, {classes}], one column a class"
        require(one_hot.ndim == 2 and one_hot.shape[1] == classes, part, seen, expected)
        wrong = ~(((one_hot == 0) | (one_hot == 1)).all(1) & ((one_hot == 1).sum(1) == 1))
        first = one_hot[wrong][:1].tolist()
        require(not wrong.any(), part, f"{wrong.sum()} rows such as {first}", "a single 1 among zeros in every row")
        labels[part] = torch.from_numpy(one_hot.argmax(1)).long()
    return labels


def _test_nodes(path: Path, start: int, stop: int, count: int) -> Tensor:
    """Read test.index: one whole number a line, the nodes of the rows of tx."""
    part = "test.index"
    with reading(path, "one whole number a line"):
        nodes = [int(line) for line in path.read_text().splitlines()]
    outside = [node for node in nodes if not start <= node < stop]
    expected = f"nodes from {start} (the number of rows of allx) to {stop - 1}"
    require(not outside, part, str(outside[:5]), expected)
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
    seen = f"node {shown(wrong[:1])} and {len(wrong)} such in all"
    require(not wrong, "graph", seen, f"whole numbers from 0 to {num_nodes - 1}")
    pairs = [(node, other) for node, others in graph.items() for other in others if node != other]
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    return torch.cat([edges, edges.flip(0)], 1).unique(dim=1)
