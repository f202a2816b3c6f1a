"""Graphs whose splits are masks: those with disagreeing neighbours, and graphs of one's own."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments.datasets.graphs.masked import read_own_graph

from experiments.datasets.graphs.load import GraphData, GraphName, load_graph

NODES, SPLITS = 8, 10


def arrays(classes: int = 2) -> dict[str, Any]:
    """A path of eight nodes in one direction, with a self loop and a duplicate, and ten splits."""
    masks = {}
    parts = {"train": [0, 1, 2, 3], "val": [4, 5], "test": [6, 7]}
    for split, nodes in parts.items():
        masks[f"{split}_mask"] = np.zeros((SPLITS, NODES), bool)
        for number in range(SPLITS):
            masks[f"{split}_mask"][number, [(node + 2 * number) % NODES for node in nodes]] = True
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
DRAWN = {"train_mask": None, "val_mask": None, "test_mask": None}


def write(path: Path, classes: int = 2, **changes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{key: value for key, value in (arrays(classes) | changes).items() if value is not None})
    return path


def nodes(graph: GraphData) -> list[list[int]]:
    return [mask.nonzero().squeeze(1).tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


@pytest.mark.parametrize("folder", ["heterophilous", "."])
@pytest.mark.parametrize(
    ("name", "classes", "metric"), [("minesweeper", 2, "roc_auc"), ("actor", 5, "accuracy"), ("texas", 5, "accuracy")]
)
def test_ten_splits(tmp_path: Path, folder: str, name: GraphName, classes: int, metric: str) -> None:
    write(tmp_path / folder / f"{name}.npz", classes)
    first, other = (load_graph(name, data_root=tmp_path, split_seed=seed) for seed in (0, 1))
    assert nodes(first) == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert nodes(other) == [[2, 3, 4, 5], [6, 7], [0, 1]]
    assert (first.num_classes, first.metric, first.name) == (classes, metric, name)
    assert first.features.to_dense().unique().tolist() == [0, 3]  # not normalised
    # both directions, once, without the self loop
    path = {(node, node + 1) for node in range(NODES - 1)}
    edges = list(map(tuple, first.edge_index.T.tolist()))
    assert sorted(edges) == sorted(path | {(target, source) for source, target in path})
    with pytest.raises(ValueError, match=r"split_seed=10, but '\w+' has 10 fixed splits; expected 0 to 9"):
        load_graph(name, data_root=tmp_path, split_seed=10)


@pytest.mark.parametrize("changes", [{}, DENSE, DENSE | {"x": np.eye(NODES, dtype=bool)}])
def test_own_graph(tmp_path: Path, changes: dict[str, Any]) -> None:
    one = {key: arrays()[key][3] for key in DRAWN}
    graph = read_own_graph(write(tmp_path / "people.npz", 3, **one, **changes))
    assert (graph.name, graph.num_classes, graph.metric) == ("people", 3, "accuracy")
    assert graph.features.shape == ((NODES, 5) if not changes else (NODES, NODES))
    assert graph.features.layout == (torch.strided if changes else torch.sparse_coo)
    with pytest.raises(ValueError, match="has 1 fixed splits; expected 0"):
        read_own_graph(tmp_path / "people.npz", split_seed=1)


def test_own_graph_names_its_metric(tmp_path: Path) -> None:
    assert read_own_graph(write(tmp_path / "people.npz", metric="roc_auc")).metric == "roc_auc"
    write(tmp_path / "heterophilous" / "actor.npz", 5, metric="roc_auc")
    assert load_graph("actor", data_root=tmp_path).metric == "accuracy"


def test_a_split_is_drawn_of_the_known_nodes(tmp_path: Path) -> None:
    labels = np.arange(NODES) % 2
    labels[5] = -1
    path = write(tmp_path / "people.npz", y=labels, **DRAWN)
    first, again, other = (nodes(read_own_graph(path, split_seed=seed)) for seed in (0, 0, 1))
    assert [len(part) for part in first] == [3, 2, 2]
    assert sorted(node for part in first for node in part) == [0, 1, 2, 3, 4, 6, 7]
    assert first == again != other


def masks(**changes: Any) -> dict[str, Any]:
    return {key: changes.get(key.removesuffix("_mask"), arrays()[key]) for key in DRAWN}


BAD = {
    "no features": ({key: None for key in DENSE}, "key 'x_data': x_data: missing among"),
    "two forms": ({"x": np.eye(NODES)}, "both x and x_data"),
    "rows": (DENSE | {"x": np.eye(9)}, "key 'x': features: 9 rows; expected 8, one a node as in y"),
    "too large": (DENSE | {"x": np.full((NODES, 2), 1e300)}, "key 'x': features: NaN or infinite values"),
    "labels as numbers": ({"y": np.zeros(NODES)}, "key 'y': y: float64 of shape [8]; expected integer of 1 dimensions"),
    "class of -2": ({"y": np.array([0, 1, 0, 1, 0, 1, 0, -2])}, "the class -2; expected classes from 0, and -1"),
    "two masks": ({"val_mask": None}, "key 'val_mask': val_mask: missing among"),
    "mask length": (masks(val=np.zeros(7, bool)), "key 'val_mask': val_mask: shape [7]; expected [8] or [splits, 8]"),
    "other splits": (masks(test=np.zeros((2, NODES), bool)), "key 'test_mask': test_mask: shape [2, 8]; expected"),
    "metric": ({"metric": "f1"}, "key 'metric': metric: 'f1'; expected one of accuracy, roc_auc"),
    "metric of three": ({"metric": "roc_auc", "y": np.arange(NODES) % 3}, "metric: roc_auc of 3 classes; expected 2"),
    "metric as number": ({"metric": 1}, "key 'metric': metric: int64 of shape []; expected str_ of 0 dimensions"),
    "overlap": (masks(val=arrays()["train_mask"]), "key 'val_mask': val_mask: 4 nodes of an earlier split"),
    "unknown in training": ({"y": np.array([-1, 1, 0, 1, 0, 1, 0, 1])}, "train_mask: 1 nodes whose y is -1"),
    "few to draw from": (DRAWN | {"y": np.array([0, 1, 0, *[-1] * 5])}, "3 nodes of a known class; expected 4"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_bad_own_graph(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "people.npz", **changes)
    with pytest.raises(ValueError, match=re.escape(str(path))) as info:
        read_own_graph(path)
    assert message in str(info.value)
    assert "list its keys" in str(info.value)


def test_one_class_to_test_on_has_no_roc_auc(tmp_path: Path) -> None:
    write(tmp_path / "minesweeper.npz", y=np.array([0, 1, 0, 1, 0, 1, 1, 1]))
    with pytest.raises(ValueError, match=r"test_mask: nodes of class 1 alone; expected nodes of both classes"):
        load_graph("minesweeper", data_root=tmp_path)


@pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("actor", (7600, 53318, 932, 5)),
        ("texas", (183, 558, 1703, 5)),
        ("chameleon_filtered", (890, 17708, 2325, 5)),
        ("squirrel_filtered", (2223, 93996, 2089, 5)),
        ("minesweeper", (10000, 78804, 7, 2)),
    ],
)
def test_real_graphs(name: GraphName, counts: tuple[int, ...]) -> None:
    graph = load_graph(name, split_seed=9)
    assert (graph.num_nodes, graph.edge_index.shape[1], graph.features.shape[1], graph.num_classes) == counts
