"""Which graphs and features GraphAttention refuses, and what it says."""

import pytest
import torch

from pyro_attention import GraphAttention
from tests.toy_models import GraphData

FEATURES, WIDTH = 5, 4


@pytest.fixture
def data():
    """Seven nodes, 16 edges."""
    return GraphData.random()


@pytest.mark.parametrize(
    ("edge_index", "error", "message"),
    [
        ([[0, 7], [1, 2]], ValueError, "edge_index names source nodes 0 to 7, expected 0 to 6"),
        ([[0, 1], [1, 9]], ValueError, "edge_index names target nodes 1 to 9, expected 0 to 6"),
        ([[0, -1], [1, 2]], ValueError, "edge_index names source nodes -1 to 0"),
        ([[0, 1], [1, 2], [0, 0]], ValueError, r"edge_index has shape \(3, 2\), expected \[2, edges\]"),
        ([0, 1], ValueError, r"edge_index has shape \(2,\)"),
        ([[0.0, 1.0], [1.0, 2.0]], TypeError, "edge_index has dtype torch.float32, expected torch.int64"),
    ],
    ids=str,
)
def test_wrong_edges(data, edge_index, error, message):
    with pytest.raises(error, match=message):
        GraphAttention(FEATURES, WIDTH)(data.features, torch.tensor(edge_index))


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({}, {"x": torch.zeros(7, 4)}, r"x has shape \(7, 4\), expected \[..., nodes, 5\]"),
        ({}, {"edge_attr": torch.zeros(16, 3)}, "edge_attr is given, which does not fit edge_dim"),
        ({"edge_dim": 3}, {}, "edge_attr is missing, which does not fit edge_dim"),
        ({"edge_dim": 3}, {"edge_attr": torch.zeros(15, 3)}, r"edge_attr has shape \(15, 3\), expected \(16, 3\)"),
        ({"edge_dim": 3}, {"edge_attr": torch.zeros(16, 2)}, r"edge_attr has shape \(16, 2\), expected \(16, 3\)"),
        ({"add_self_loops": False}, {"edge_index": "built"}, "built with add_self_loops=True, the layer expects False"),
        ({}, {"edge_index": "built", "x": torch.zeros(6, 5)}, "7 sources and 7 targets, the features 6 and 6"),
    ],
    ids=str,
)
def test_wrong_calls(data, options, arguments, message):
    layer = GraphAttention(FEATURES, WIDTH, **options)
    arguments = {"x": data.features, "edge_index": data.edge_index, **arguments}
    if isinstance(arguments["edge_index"], str):
        arguments["edge_index"] = data.graph
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


def test_self_loops_need_one_set_of_nodes():
    layer = GraphAttention((FEATURES, 2), WIDTH)
    with pytest.raises(ValueError, match="add_self_loops needs one set of nodes, got 7 sources and 4 targets"):
        layer((torch.zeros(7, FEATURES), torch.zeros(4, 2)), torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize("options", [{"out_channels": 0}, {"heads": 0}, {"in_channels": (3, 0)}], ids=str)
def test_wrong_sizes(options):
    with pytest.raises(ValueError, match="all must be >= 1"):
        GraphAttention(**{"in_channels": 3, "out_channels": 4, **options})


def test_unknown_fill_value():
    with pytest.raises(ValueError, match="fill_value is 'median', expected a number or one of mean, add"):
        GraphAttention(3, 4, edge_dim=2, fill_value="median")
