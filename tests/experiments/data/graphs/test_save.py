"""Graphs of PyTorch Geometric, written and read again."""

from types import SimpleNamespace

import pytest
import torch

from experiments.data.graphs.load import read_own_graph
from experiments.data.graphs.save import save_graph


def graph(nodes=8, **changed):
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    return SimpleNamespace(**{"x": torch.rand(nodes, 3), "y": torch.arange(nodes) % 2, "edge_index": ring} | changed)


def masks(nodes=8, splits=None):
    part = torch.arange(nodes) % 4
    parts = {"train_mask": part < 2, "val_mask": part == 2, "test_mask": part == 3}
    return parts if splits is None else {name: mask[:, None].expand(nodes, splits) for name, mask in parts.items()}


def test_a_data_of_pyg_comes_back(tmp_path):
    data = pytest.importorskip("torch_geometric.data").Data(**vars(graph()), **masks())
    save_graph(tmp_path / "a.npz", data)
    read = read_own_graph(tmp_path / "a.npz")
    assert read.features.equal(data.x)
    assert read.labels.equal(data.y)
    assert read.edge_index.size(1) == 16  # both directions
    assert all(getattr(read, name).equal(getattr(data, name)) for name in masks())


@pytest.mark.parametrize("splits", [1, 3])
def test_splits_in_columns_are_those_in_rows_of_the_file(tmp_path, splits):
    parts = masks(splits=splits)
    parts["train_mask"] = parts["train_mask"].clone()
    parts["train_mask"][0, -1] = False  # in the last split alone
    y = (torch.arange(8) // 4)[:, None]  # as some datasets of PyG have it
    save_graph(tmp_path / "a.npz", graph(y=y, **parts), metric="roc_auc")
    read = read_own_graph(tmp_path / "a.npz", split_seed=splits - 1)
    assert read.train_mask.equal(parts["train_mask"][:, -1])
    assert read.metric == "roc_auc"


def test_sparse_features_come_back(tmp_path):
    x = torch.eye(8)
    save_graph(tmp_path / "a.npz", graph(x=x.to_sparse()))
    assert read_own_graph(tmp_path / "a.npz").features.equal(x)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": None}, "the graph has no x, expected x"),
        ({"y": torch.rand(8)}, "y has float32, expected integers"),
        ({"y": torch.zeros(7, dtype=torch.long)}, r"y has shape \[7\], expected \[8\] for 8 rows of x"),
        ({"x": torch.rand(8)}, r"x has shape \[8\], expected \[8, any\]"),
        ({"edge_index": torch.zeros(5, 2, dtype=torch.long)}, r"edge_index has shape \[5, 2\], expected \[2, any\]"),
        ({"val_mask": torch.ones(8, dtype=torch.bool)}, "the graph has no train_mask, test_mask, expected all of"),
    ],
)
def test_what_is_no_graph_is_refused_and_nothing_is_written(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        save_graph(tmp_path / "a.npz", graph(**changed))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_unless_it_is_said(tmp_path):
    path = tmp_path / "a.npz"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"a\.npz exists; choose another name, or pass overwrite=True"):
        save_graph(path, graph())
    assert path.read_text() == "mine"
    save_graph(path, graph(), overwrite=True)
    assert read_own_graph(path).num_nodes == 8
    with pytest.raises(ValueError, match=r"expected a name that ends with \.npz"):
        save_graph(tmp_path / "a.pt", graph())
