"""DBLP: an archive without a split."""

import os
import re

import numpy as np
import pytest
import torch

from experiments.datasets.graphs.load import load_graph


def split_sizes(graph):
    return [int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)]


@pytest.fixture
def write_dblp(tmp_path):
    def write_dblp(folder=".", nodes=1600, **changes):
        ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes]).astype(np.int32)
        arrays = {
            "x_data": np.full(nodes, 3, dtype=np.float32),
            "x_indices": np.arange(nodes, dtype=np.int32) % 5,
            "x_indptr": np.arange(nodes + 1),
            "x_shape": np.array([nodes, 5]),
            "y": np.arange(nodes) % 4,
            "edge_index": np.concatenate([ring, ring[::-1]], axis=1),
        }
        (tmp_path / folder).mkdir(exist_ok=True)
        np.savez(tmp_path / folder / "dblp.npz", **arrays | changes)
        return tmp_path

    return write_dblp


@pytest.mark.parametrize(
    ("folder", "nodes", "left"),
    [(".", 1600, 1000), ("graphs-extra", 1600, 1000), ("planetoid", 1600, 1000), (".", 600, 20)],
)
def test_dblp(write_dblp, folder, nodes, left):
    graph = load_graph("dblp", data_root=write_dblp(folder, nodes))
    assert split_sizes(graph) == [80, 500, left]
    assert graph.num_classes == 4
    assert graph.labels[graph.train_mask].tolist().count(3) == 20
    assert graph.features.values().unique().tolist() == [1]
    assert graph.edge_index.dtype == torch.int64


@pytest.mark.parametrize("seed", [0, 1])
def test_dblp_seed_moves_the_split_and_nothing_else(write_dblp, seed):
    root = write_dblp()
    first, other = load_graph("dblp", data_root=root), load_graph("dblp", data_root=root, split_seed=seed)
    assert torch.equal(first.train_mask, other.train_mask) == (seed == 0)
    assert torch.equal(first.features.to_dense(), other.features.to_dense())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 580}, "key 'y': labels: 500 nodes beside the 80 to train on; expected more than 500"),
        ({"nodes": 40}, "key 'y': labels: a class of 10; expected 20 and more"),
        ({"y": np.arange(1600) % 5}, "key 'y': y: [4, 4, 4, 4, 4]; expected values from 0 to 3"),
        ({"y": np.arange(1601) % 4}, "key 'y': y: 1601 entries; expected 1600, one a node"),
    ],
)
def test_bad_dblp(write_dblp, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load_graph("dblp", data_root=write_dblp(**changes))


@pytest.mark.skipif(not os.environ.get("PYRO_ATTENTION_DATA"), reason="PYRO_ATTENTION_DATA is not set")
def test_real_dblp():
    graph = load_graph("dblp")
    assert graph.features.shape == (17716, 1639)
    assert graph.edge_index.shape == (2, 2 * 52867)
    assert split_sizes(graph) == [80, 500, 1000]
    assert graph.labels[graph.train_mask].bincount().tolist() == [20] * 4
