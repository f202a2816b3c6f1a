import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.datasets.graphs.load import GraphData, GraphDataError, load_graph


def small_arrays():
    """Six nodes, four features: node 1 has no features, node 5 no edges and no known label."""
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 4]])
    return {
        "x_data": np.array([1, 3, 1, 2, 1, 1], dtype=np.float32),
        "x_indices": np.array([0, 2, 1, 3, 0, 3], dtype=np.int32),
        "x_indptr": np.array([0, 2, 2, 3, 4, 5, 6]),
        "x_shape": np.array([6, 4]),
        "y": np.array([0, 6, 1, 2, 3, -1]),
        "y_known": np.array([True, True, True, True, True, False]),
        "edge_index": np.concatenate([edges, edges[::-1]], axis=1),
        "train_idx": np.array([0, 1]),
        "val_idx": np.array([2]),
        "test_idx": np.array([4]),
    }


def small_graph():
    return GraphData(
        name="small",
        features=torch.eye(4),
        labels=torch.tensor([0, 1, 0, 1]),
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
        train_mask=torch.tensor([True, False, False, False]),
        val_mask=torch.tensor([False, True, False, False]),
        test_mask=torch.tensor([False, False, True, False]),
        num_classes=2,
        images=torch.zeros(4, 3, 5),
    )


@pytest.fixture
def write(tmp_path):
    def write(**changes):
        arrays = {key: value for key, value in (small_arrays() | changes).items() if value is not None}
        np.savez(tmp_path / "cora.npz", **arrays)
        return tmp_path / "cora.npz"

    return write


def tensors(graph):
    return [value for value in vars(graph).values() if isinstance(value, torch.Tensor)]


def edge_set(graph):
    return set(map(tuple, graph.edge_index.T.tolist()))


def split_sizes(graph):
    return [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


# digits


@pytest.fixture(scope="module")
def digits():
    return load_graph("digits")


def test_digits_sizes(digits):
    assert digits.num_nodes == 1797
    assert digits.num_classes == 10
    assert digits.features.shape == (1797, 64)
    assert digits.features.aminmax() == (0.0, 1.0)
    assert split_sizes(digits) == [200, 500, 1097]
    assert digits.labels[digits.train_mask].bincount().tolist() == [20] * 10
    torch.testing.assert_close(digits.images.flatten(1), digits.features)
    # the splits cover every node once
    masks = digits.train_mask.int() + digits.val_mask.int() + digits.test_mask.int()
    assert torch.equal(masks, torch.ones(1797).int())


def test_digits_edges_join_each_node_with_its_nearest(digits):
    edges = edge_set(digits)
    assert edges == {(target, source) for source, target in edges}
    assert len(edges) == digits.edge_index.shape[1]
    assert digits.edge_index[1].bincount(minlength=1797).min() >= 10
    distances = torch.cdist(digits.features[:50].double(), digits.features.double())
    distances[torch.arange(50), torch.arange(50)] = torch.inf
    for node, row in enumerate(distances):
        closer = (row < row.sort().values[9] - 1e-9).nonzero().flatten().tolist()
        assert all((other, node) in edges for other in closer)
    # neighbours share labels
    source, target = digits.edge_index
    assert (digits.labels[source] == digits.labels[target]).float().mean() > 0.95


@pytest.mark.parametrize("seed", [0, 1])
def test_digits_seed_moves_the_split_and_nothing_else(digits, seed):
    other = load_graph("digits", split_seed=seed)
    assert split_sizes(digits) == split_sizes(other)
    assert torch.equal(digits.train_mask, other.train_mask) == (seed == 0)
    assert torch.equal(digits.edge_index, other.edge_index)
    assert seed or all(torch.equal(a, b) for a, b in zip(tensors(digits), tensors(other), strict=True))


# files


@pytest.mark.parametrize("folder", [".", "planetoid"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_file_is_found(write, tmp_path, monkeypatch, folder, by):
    (tmp_path / folder).mkdir(exist_ok=True)
    path = write()
    path.rename(tmp_path / folder / "cora.npz")
    monkeypatch.setenv("PYRO_ATTENTION_DATA", str(tmp_path if by == "environment" else tmp_path / "other"))
    assert load_graph("cora", data_root=tmp_path if by == "argument" else None).num_nodes == 6


def test_file_contents(write):
    graph = load_graph("cora", data_root=write().parent)
    assert graph.features.layout == torch.sparse_coo
    assert graph.features.is_coalesced()
    expected = [[0.25, 0, 0.75, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 1]]
    assert graph.features.to_dense().tolist() == expected
    assert graph.labels[:5].tolist() == [0, 6, 1, 2, 3]
    assert graph.edge_index.tolist() == small_arrays()["edge_index"].tolist()
    assert graph.edge_index.dtype == graph.labels.dtype == torch.int64
    assert split_sizes(graph) == [2, 1, 1]
    assert graph.num_classes == 7
    assert graph.images is None
    # a node of unknown label is in no mask
    assert not (graph.train_mask | graph.val_mask | graph.test_mask)[5]
    assert 0 <= graph.labels[5] < 7


def changed(key, position, value):
    array = small_arrays()[key]
    array = array.astype(np.result_type(array, type(value)))
    array[position] = value
    return {key: array}


BAD_ARRAYS = {
    "no key": ("val_idx", {"val_idx": None}, "missing among", "an array"),
    "integer features": ("x_data", {"x_data": np.ones(6, int)}, "int64 of shape [6]", "floating of 1 dimensions"),
    "columns": ("x_shape", changed("x_indices", 0, 4), "", "CSR"),
    "labels too short": ("y_known", {"y": np.zeros(5, int)}, "6 entries", "5"),
    "label too large": ("y", changed("y", 2, 7), "[7]", "from 0 to 6"),
    "split negative": ("test_idx", {"test_idx": np.array([-1])}, "[-1]", "from 0 to 5"),
    "unknown label": ("val_idx", {"val_idx": np.array([2, 5])}, "1 nodes with y_known False", "label is known"),
    "nan": ("x_data", changed("x_data", 1, np.float32("nan")), "NaN or infinite", "finite"),
}


@pytest.mark.parametrize(("key", "changes", "seen", "expected"), BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_bad_arrays(write, key, changes, seen, expected):
    path = write(**changes)
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        load_graph("cora", data_root=path.parent)
    message = str(info.value)
    assert f"key '{key}'" in message
    found, _, wanted = message.partition("; expected ")
    assert seen in found
    assert expected in wanted
    assert "--data-root" in wanted


# GraphData of users


def test_to_keeps_everything():
    graph = small_graph()
    moved = graph.to("cpu")
    assert (moved.name, moved.num_classes) == ("small", 2)
    assert all(torch.equal(a, b) for a, b in zip(tensors(graph), tensors(moved), strict=True))


@pytest.mark.cuda
def test_to_moves_every_tensor(write):
    graph = load_graph("cora", data_root=write().parent).to("cuda")
    assert {value.device.type for value in tensors(graph)} == {"cuda"}
    assert graph.features.is_coalesced()


def with_place(place):
    """Sparse features with a value at a place that is not there; torch does not look."""
    with torch.sparse.check_sparse_tensor_invariants(False):
        places = torch.tensor([[place, 0]]).T
        return torch.sparse_coo_tensor(places, torch.ones(1), (4, 4), is_coalesced=True)


BAD_FIELDS = {
    "sparse row": ("features", with_place(4), "[4]; expected values from 0 to 3"),
    "half a class": ("num_classes", 2.0, "2.0; expected a whole number from 1"),
    "float64": ("features", torch.eye(4).double(), "torch.float64 of shape [4, 4]; expected torch.float32"),
    "vector": ("features", torch.ones(4), "torch.float32 of shape [4]; expected torch.float32 of shape [any, any]"),
    "uncoalesced": (
        "features",
        torch.sparse_coo_tensor([[0, 0], [0, 0]], [1.0, 1.0], (4, 4), check_invariants=True),
        "not coalesced; expected features.coalesce()",
    ),
    "nan": ("features", torch.full((4, 4), torch.nan), "NaN or infinite"),
    "sparse nan": ("features", torch.eye(4).log().to_sparse_coo(), "NaN or infinite"),
    "labels": ("labels", torch.tensor([0, 1, 2, 1]), "[2]; expected values from 0 to 1"),
    "edges": ("edge_index", torch.tensor([[0], [4]]), "[4]; expected values from 0 to 3"),
    "self loop": ("edge_index", torch.tensor([[2], [2]]), "1 self loops; expected none"),
    "duplicates": ("edge_index", torch.tensor([[0, 0, 1], [1, 1, 0]]), "1 duplicate edges"),
    "one direction": ("edge_index", torch.tensor([[0], [1]]), "expected both directions"),
    "empty split": ("train_mask", torch.zeros(4).bool(), "an empty split"),
    "overlap": ("val_mask", torch.tensor([True, False, False, False]), "1 nodes of an earlier split"),
    "images": ("images", torch.zeros(3, 3, 5), "shape [3, 3, 5]; expected torch.float32 of shape [4, any, any]"),
}


@pytest.mark.parametrize(("field", "value", "message"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_bad_field(field, value, message):
    graph = small_graph()
    with pytest.raises(GraphDataError, match=f"^{field}: .*{re.escape(message)}") as info:
        replace(graph, **{field: value})
    assert info.value.field == field


# real data


@pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "features", "classes", "train", "isolated"),
    [("cora", 2708, 5278, 1433, 7, 140, 0), ("citeseer", 3327, 4552, 3703, 6, 120, 48)],
)
def test_real_counts(name, nodes, edges, features, classes, train, isolated):
    graph = load_graph(name)
    assert graph.features.shape == (nodes, features)
    assert graph.edge_index.shape == (2, 2 * edges)
    assert graph.num_classes == classes == len(graph.labels.unique())
    assert split_sizes(graph) == [train, 500, 1000]
    assert graph.labels[graph.train_mask].bincount().tolist() == [20] * classes
    assert (graph.edge_index[0].bincount(minlength=nodes) == 0).sum() == isolated
    sums = torch.sparse.sum(graph.features, 1).to_dense()
    torch.testing.assert_close(sums[sums != 0], torch.ones_like(sums[sums != 0]))
