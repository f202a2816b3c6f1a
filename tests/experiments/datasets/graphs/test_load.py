"""Graphs: what is read of every format, splits, and what is refused."""

import io
import pickle
import re
import struct
from collections import defaultdict
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from experiments.datasets.graphs.load import load_graph, read_own_graph

NODES, SPLITS = 8, 10


def nodes(graph):
    return [mask.nonzero().squeeze(1).tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


def edge_set(graph):
    edges = list(map(tuple, graph.edge_index.T.tolist()))
    assert len(set(edges)) == len(edges)
    return set(edges)


def both(pairs):
    return pairs | {(target, source) for source, target in pairs}


# digits


@pytest.fixture(scope="module")
def digits():
    return load_graph("digits")


def test_digits(digits):
    assert digits.features.aminmax() == (0.0, 1.0)
    assert list(map(len, nodes(digits))) == [200, 500, 1097]
    assert digits.labels[digits.train_mask].bincount().tolist() == [20] * 10
    edges = edge_set(digits)
    distances = torch.cdist(digits.features[:50].double(), digits.features.double())
    distances[torch.arange(50), torch.arange(50)] = torch.inf
    for node, row in enumerate(distances):
        closer = (row < row.sort().values[9] - 1e-9).nonzero().flatten().tolist()
        assert all((other, node) in edges for other in closer)
    source, target = digits.edge_index
    assert (digits.labels[source] == digits.labels[target]).float().mean() > 0.95


def test_seed_moves_the_split_and_nothing_else(digits):
    other = load_graph("digits", split_seed=1)
    assert nodes(other) != nodes(digits)
    assert torch.equal(digits.edge_index, other.edge_index)


# archives


def arrays(classes=2):
    """A path of eight nodes in one direction, with a self loop and a duplicate, and ten splits."""
    masks = {f"{split}_mask": np.zeros((SPLITS, NODES), bool) for split in ("train", "val", "test")}
    for number in range(SPLITS):
        for key, part in zip(masks, ([0, 1, 2, 3], [4, 5], [6, 7]), strict=True):
            masks[key][number, [(node + 2 * number) % NODES for node in part]] = True
    return {
        "y": np.arange(NODES) % classes,
        "edge_index": np.array([[0, 1, 2, 3, 4, 5, 6, 3, 0, 1], [1, 2, 3, 4, 5, 6, 7, 3, 1, 0]]),
        "x_data": np.full(NODES, 3, np.float32),
        "x_indices": np.arange(NODES, dtype=np.int32) % 5,
        "x_indptr": np.arange(NODES + 1),
        "x_shape": np.array([NODES, 5]),
        **masks,
    }


DENSE = {"x": np.eye(NODES), "x_data": None, "x_indices": None, "x_indptr": None, "x_shape": None}
NO_MASKS = {"train_mask": None, "val_mask": None, "test_mask": None}


def write(path, classes=2, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: value for key, value in (arrays(classes) | changes).items() if value is not None})
    return path


@pytest.mark.parametrize(("name", "classes", "metric"), [("minesweeper", 2, "roc_auc"), ("actor", 5, "accuracy")])
def test_ten_splits(tmp_path, name, classes, metric):
    write(tmp_path / "heterophilous" / f"{name}.npz", classes)
    first, other = (load_graph(name, data_root=tmp_path, split_seed=seed) for seed in (0, 1))
    assert nodes(first) == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert nodes(other) == [[2, 3, 4, 5], [6, 7], [0, 1]]
    assert (first.num_classes, first.metric, first.name) == (classes, metric, name)
    assert first.features.to_dense().unique().tolist() == [0, 3]  # not normalised
    assert edge_set(first) == both({(node, node + 1) for node in range(NODES - 1)})
    with pytest.raises(ValueError, match="10; expected 0 to 9, the graph has 10 fixed splits"):
        load_graph(name, data_root=tmp_path, split_seed=10)


@pytest.mark.parametrize("changes", [{}, DENSE])
def test_own_graph(tmp_path, changes):
    one = {key: arrays()[key][3] for key in NO_MASKS}
    graph = read_own_graph(write(tmp_path / "people.npz", 2, **one, **changes, metric="roc_auc"))
    assert (graph.name, graph.num_classes, graph.metric) == ("people", 2, "roc_auc")
    assert graph.features.layout == (torch.strided if changes else torch.sparse_coo)
    assert nodes(graph) == [[0, 1, 6, 7], [2, 3], [4, 5]]


def test_a_split_is_drawn_of_the_known_nodes(tmp_path):
    labels = np.arange(NODES) % 2
    labels[5] = -1
    path = write(tmp_path / "people.npz", y=labels, **NO_MASKS)
    first, again, other = (nodes(read_own_graph(path, split_seed=seed)) for seed in (0, 0, 1))
    assert [len(part) for part in first] == [3, 2, 2]
    assert sorted(node for part in first for node in part) == [0, 1, 2, 3, 4, 6, 7]
    assert first == again != other


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (DENSE | {"x": np.full((NODES, 2), np.inf)}, "features: NaN or infinite values"),
        ({"y": np.array([0, 1, 0, 1, 0, 1, 0, -2])}, "y: the class -2; expected classes from 0, and -1"),
        ({"edge_index": np.array([[0], [8]])}, "edge_index: [8]; expected values from 0 to 7"),
        ({"metric": "roc_auc", "y": np.arange(NODES) % 3}, "; expected both of 2, for roc_auc"),
        ({"val_mask": arrays()["train_mask"]}, "val_mask: no nodes, or nodes of an earlier split"),
        ({"y": np.array([-1, 1, 0, 1, 0, 1, 0, 1])}, "train_mask: nodes of unknown class"),
    ],
)
def test_bad_archive(tmp_path, changes, message):
    path = write(tmp_path / "people.npz", **changes)
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        read_own_graph(path)
    assert message in str(info.value)


# Planetoid's original files


def content():
    """Ten nodes: 0-2 to train on, 3-6 to validate, 9 and 7 to test; 8 is in no file, 6 has no edges."""
    allx = np.array([[1, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0], [3, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 0]])
    ally = np.eye(3, dtype=np.int32)[[2, 0, 1, 1, 0, 2, 0]]
    graph = defaultdict(list, {node: [] for node in range(10)})
    # 0-3 is there twice, 4-9 in one direction only, 5 has a loop
    graph |= {0: [3, 3, 1], 1: [0, 7], 3: [0], 4: [9], 5: [5, 2], 7: [1], 2: [5]}
    return {
        "y": ally[:3],
        "tx": csr_matrix(np.array([[0, 4, 0, 0], [0, 0, 1, 3]], dtype=np.float32)),
        "ty": np.asfortranarray(np.eye(3, dtype=">i4")[[1, 2]]),
        "allx": csr_matrix(allx.astype(np.float32)),
        "ally": ally,
        "graph": graph,
        "test.index": b"9\n7\n",
    }


class Python2Pickler(pickle._Pickler):
    """Writes strings and bytes as Python 2 did: both are runs of bytes."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_run(self, value):
        run = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(run)) + run)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_run


def python2(value):
    """What Python 2 with the numpy and scipy of its time would have written."""
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.", b"numpy.core.").replace(b"scipy.sparse._csr", b"scipy.sparse.csr")


def write_planetoid(folder, dump=python2, **changes):
    folder.mkdir(parents=True)
    for part, value in (content() | changes).items():
        path = folder / f"ind.pubmed.{part}"
        path.write_bytes(value if isinstance(value, bytes) else dump(value))


@pytest.mark.parametrize("dump", [python2, pickle.dumps])
def test_planetoid(tmp_path, dump):
    write_planetoid(tmp_path / "data" / "planetoid" / "raw", dump)
    graph = load_graph("pubmed", data_root=tmp_path / "data")
    expected = [[0.5, 0.5, 0, 0], [0, 0, 1, 0], [0] * 4, [0.75, 0.25, 0, 0], [0, 0, 0, 1], [0.5, 0, 0, 0.5]]
    expected += [[0, 1, 0, 0], [0, 0, 0.25, 0.75], [0] * 4, [0, 1, 0, 0]]
    assert graph.features.to_dense().tolist() == expected
    assert graph.labels.tolist() == [2, 0, 1, 1, 0, 2, 0, 2, 0, 1]
    assert nodes(graph) == [[0, 1, 2], [3, 4, 5, 6], [7, 9]]
    assert edge_set(graph) == both({(0, 1), (0, 3), (1, 7), (4, 9), (2, 5)})


def test_bad_planetoid(tmp_path):
    write_planetoid(tmp_path / "data" / "planetoid" / "raw", graph=defaultdict(list, {0: [print]}))
    with pytest.raises(ValueError, match=r"graph cannot be read .*asks for __builtin__\.print, which is"):
        load_graph("pubmed", data_root=tmp_path / "data")
