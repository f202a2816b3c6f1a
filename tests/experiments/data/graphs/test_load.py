"""Graphs: what is read of every format, splits, what is refused, and noise that is added."""

import io
import pickle
import re
import struct
from collections import defaultdict
from dataclasses import fields, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from experiments.data.graphs.load import (
    GraphData,
    add_edge_noise,
    add_feature_noise,
    both_directions,
    limit_labels,
    load_graph,
    read_own_graph,
)

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
    assert first.features.to_dense().unique().tolist() == [0, 3]  # not normalized
    assert edge_set(first) == both({(node, node + 1) for node in range(NODES - 1)})
    with pytest.raises(ValueError, match=r"^split_seed: 10; expected 0 to 9, the graph has 10 fixed splits") as error:
        load_graph(name, data_root=tmp_path, split_seed=10)
    assert "intact copy" not in str(error.value)  # the file is as it should be


@pytest.mark.parametrize("changes", [{}, DENSE])
def test_own_graph(tmp_path, changes):
    one = {key: arrays()[key][3] for key in NO_MASKS}
    graph = read_own_graph(write(tmp_path / "people.npz", 2, **one, **changes, metric="roc_auc"))
    assert (graph.name, graph.num_classes, graph.metric) == ("people", 2, "roc_auc")
    assert graph.features.layout == (torch.strided if changes else torch.sparse_coo)
    assert nodes(graph) == [[0, 1, 6, 7], [2, 3], [4, 5]]


def test_zeros_and_ones_are_truth_values(tmp_path):
    masks = {key: arrays()[key].astype(np.uint8) for key in NO_MASKS}
    graph = read_own_graph(write(tmp_path / "people.npz", **masks), split_seed=1)
    assert nodes(graph) == [[2, 3, 4, 5], [6, 7], [0, 1]]


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
        (DENSE | {"x": np.ones(NODES)}, "features: shape (8,); expected (8, features)"),
        (DENSE | {"x": np.ones((NODES, 2, 2))}, "features: shape (8, 2, 2); expected (8, features)"),
        (DENSE | {"x": np.ones((NODES, 0))}, "features: shape (8, 0); expected (8, features)"),
        (DENSE | {"x": np.ones((NODES + 1, 2))}, "features: shape (9, 2); expected (8, features)"),
        ({"y": np.zeros(NODES, dtype=np.int64)}, "num_classes: 1; expected two or more"),
        ({"y": np.array([0, 1, 0, 1, 0, 1, 0, -2])}, "y: the class -2; expected classes from 0, and -1"),
        ({"edge_index": np.array([[0], [8]])}, "edge_index: [8]; expected values from 0 to 7"),
        ({"y": np.zeros((NODES, 1), int)}, "y: shape (8, 1); expected (nodes,)"),
        ({"y": np.arange(NODES) % 2 + 0.0}, "y: float64; expected integers"),
        ({"edge_index": arrays()["edge_index"].T}, "edge_index: shape (10, 2); expected (2, edges)"),
        ({"edge_index": arrays()["edge_index"] + 0.0}, "edge_index: float64; expected integers"),
        ({"val_mask": None, "test_mask": None}, "no val_mask, test_mask; expected all of train_mask, val_mask"),
        ({"val_mask": arrays()["val_mask"].T}, "val_mask: shape (8, 10); expected (8,) or (splits, 8)"),
        ({"val_mask": 2 * arrays()["val_mask"]}, "val_mask: int64 with other values than 0 and 1"),
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


@pytest.mark.parametrize("separator", ["\r", "\u2028", "\x85", "\x0c"])
def test_only_line_feeds_part_the_lines_of_an_index(tmp_path, separator):
    write_planetoid(tmp_path / "planetoid" / "raw", **{"test.index": f"9{separator}7\n".encode()})
    with pytest.raises(ValueError, match=r"ind\.pubmed\.\*.*cannot be read"):
        load_graph("pubmed", data_root=tmp_path)


PERTURBATIONS = {
    "train_mask": (limit_labels, 2),
    "features": (add_feature_noise, 0.3),
    "edge_index": (add_edge_noise, 0.5),
}


def make_graph(features=None, pairs=None, nodes=30):
    """A ring of nodes in three classes; 12 nodes to train on."""
    index = torch.arange(nodes)
    if features is None:
        features = torch.rand(nodes, 11, generator=torch.Generator().manual_seed(1))
        features = torch.where(features < 0.4, features + 0.01, 0)
    edges = torch.tensor([(i, (i + 1) % nodes) for i in range(nodes)] if pairs is None else pairs).T
    return GraphData(
        name="ring",
        features=features,
        labels=index % 3,
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        train_mask=index < nodes - 18,
        val_mask=(index >= nodes - 18) & (index < nodes - 8),
        test_mask=index >= nodes - 8,
        num_classes=3,
    )


def dense(value):
    return value.to_dense() if isinstance(value, torch.Tensor) else value


def same(first, second):
    return torch.equal(dense(first), dense(second)) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize("field", PERTURBATIONS)
@pytest.mark.parametrize("sparse", [False, True])
def test_the_seed_decides_on_one_field_and_leaves_the_others_alone(field, sparse):
    perturb, amount = PERTURBATIONS[field]
    graph = make_graph()
    graph = replace(graph, features=graph.features.to_sparse_coo().coalesce()) if sparse else graph
    before = {one.name: getattr(graph, one.name) for one in fields(graph)}
    state = torch.get_rng_state()
    noisy, again, other = (perturb(graph, amount, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert [name for name, value in before.items() if not same(value, getattr(noisy, name))] == [field]
    assert noisy.features.is_sparse == sparse
    assert same(getattr(noisy, field), getattr(again, field))
    assert not same(getattr(noisy, field), getattr(other, field))


def test_labels_of_each_class_are_kept():
    graph = make_graph()
    masks = [limit_labels(graph, per_class, seed=1).train_mask for per_class in (1, 3, 4)]
    assert [graph.labels[mask].bincount().tolist() for mask in masks] == [[1] * 3, [3] * 3, [4] * 3]
    assert not (masks[0] & ~masks[1] | masks[1] & ~masks[2] | masks[2] & ~graph.train_mask).any()
    # a class with fewer keeps them all: one node of class 0, none of class 3
    first, *others = (graph.train_mask & (graph.labels == 0)).nonzero().flatten().tolist()
    rare = torch.isin(torch.arange(graph.num_nodes), torch.tensor(others))
    mask = limit_labels(replace(graph, train_mask=graph.train_mask & ~rare, num_classes=4), 3, seed=1).train_mask
    assert graph.labels[mask].bincount(minlength=4).tolist() == [1, 3, 3, 0]
    assert mask[first]


@pytest.mark.parametrize(
    ("perturb", "changes", "amount", "message"),
    [
        (add_feature_noise, {"features": torch.ones(30, 1)}, 0.5, r"=0\.5: row \d+ of the features of 'ring' has no z"),
        (add_edge_noise, {}, 14, "is 420 new edges, but only 405 pairs of nodes have no edge"),
    ],
)
def test_bad_amounts(perturb, changes, amount, message):
    with pytest.raises(ValueError, match=message):
        perturb(replace(make_graph(), **changes), amount)


@pytest.mark.parametrize("fraction", [0.1, 1.0])
def test_features_move_within_their_rows(fraction):
    graph = make_graph()
    old, new = graph.features, add_feature_noise(graph, fraction, seed=2).features
    assert torch.equal(old.sort(1).values, new.sort(1).values)  # values are distinct: each is kept, in its row
    total = int((old != 0).sum())
    assert int(((old == new) & (old != 0)).sum()) == total - round(fraction * total)


def test_columns_are_uniform():
    features = torch.zeros(3000, 5)
    features[:, 1], features[:, 2] = 0.25, 0.75
    new = add_feature_noise(make_graph(features, pairs=[(0, 1)], nodes=3000), 1).features
    pairs = torch.stack([(new == 0.25).int().argmax(1), (new == 0.75).int().argmax(1)], 1)
    found, counts = pairs.unique(dim=0, return_counts=True)
    allowed = {(a, b) for a in range(5) for b in range(5) if a != b and a != 1 and b != 2}
    assert set(map(tuple, found.tolist())) == allowed
    expected = 3000 / len(allowed)
    assert (counts - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("fraction", [0.1, 1.0, 5.0, (30 * 29 / 2 - 30) / 30], ids=["few", "as many", "many", "all"])
def test_edges_are_added(fraction):
    graph = make_graph()
    noisy = add_edge_noise(graph, fraction, seed=2)
    # neither loops, nor duplicates, nor single directions
    assert both_directions(noisy.edge_index, 30).shape == noisy.edge_index.shape
    assert torch.equal(noisy.edge_index[:, :60], graph.edge_index)
    assert noisy.edge_index.shape[1] == 60 + 2 * round(30 * fraction)


def test_new_edges_are_uniform():
    graph = make_graph(pairs=[(0, 1), (2, 4), (28, 29), (5, 6)])
    counts = torch.zeros(30, 30)
    for seed in range(200):
        source, target = add_edge_noise(graph, 2, seed=seed).edge_index[:, 8:16]
        counts[source, target] += 1
    free = torch.ones(30, 30).triu(1).bool()
    free[graph.edge_index[0], graph.edge_index[1]] = False
    expected = 200 * 8 / int(free.sum())
    assert counts.triu(1)[free].sum() == 200 * 8
    assert ((counts[free] - expected) ** 2 / expected).mean() == pytest.approx(1, abs=0.35)
