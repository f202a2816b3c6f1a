"""Which graphs and features GraphAttention refuses, and what it says."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from pyro_attention import EdgeList, GraphAttention
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
        ({"add_self_loops": False}, {"edge_index": "built"}, "the EdgeList has add_self_loops=True, expected False"),
        ({}, {"edge_index": "built", "x": torch.zeros(6, 5)}, r"\(sources, targets\) \(7, 7\), but x has \(6, 6\)"),
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


x = torch.zeros(7, FEATURES)


class OtherConv(GATConv):
    """May compute something else."""


@pytest.mark.parametrize(
    ("conv", "error", "message"),
    [
        (lambda: TransformerConv(3, 4), TypeError, "TransformerConv, expected a GATConv or GATv2Conv"),
        (lambda: OtherConv(3, 4), TypeError, "OtherConv, expected"),
        (lambda: torch.nn.Linear(3, 4), TypeError, "Linear, expected a GATConv or GATv2Conv"),
        (lambda: GATConv(3, 4, flow="target_to_source"), ValueError, r"flow='target_to_source'.*edge_index.flip\(0\)"),
        (lambda: GATConv(3, 4, aggr="mean"), ValueError, "aggr is a MeanAggregation, expected 'add'"),
        (lambda: GATv2Conv(3, 4, aggr="mean"), ValueError, "GATv2Conv whose aggr is a MeanAggregation"),
        (lambda: GATConv(3, 4, aggr="max"), ValueError, "aggr is a MaxAggregation, expected 'add'"),
        (lambda: GATConv(-1, 4), ValueError, r"GATConv\(-1, 4, heads=1\), whose sizes are not known yet"),
        (lambda: GATConv((-1, -1), 4), ValueError, "sizes are not known yet .*; call it once with data"),
        (lambda: GATConv(3, 4, edge_dim=-1), ValueError, "sizes are not known yet"),
        (
            lambda: GATConv(3, 4, edge_dim=2, fill_value=torch.ones(2)),
            ValueError,
            r"fill_value is a tensor of shape \(2",
        ),
    ],
)
def test_layers_that_cannot_be_copied(conv, error, message):
    with pytest.raises(error, match=f"cannot copy .*{message}"):
        GraphAttention.from_pyg(conv())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"x": (x, None)},
            TypeError,
            r"x is \(Tensor, NoneType\), expected .*\(sources, targets\); .* zeros",
        ),
        ({"x": (x,)}, TypeError, r"x is \(Tensor\), expected"),
        ({"x": None}, TypeError, "x is NoneType, expected"),
        ({"x": x.tolist()}, TypeError, r"x is \(list, "),
        ({"x": x[0]}, ValueError, r"x has shape \(5,\), expected \[..., nodes, channels\]"),
        ({"x": x.long()}, TypeError, "x has dtype torch.int64, expected floating point"),
        ({"edge_index": [[0], [1]]}, TypeError, "edge_index is of type list, expected int64 "),
    ],
)
def test_wrong_types(data, arguments, error, message):
    arguments = {"x": x, "edge_index": data.edge_index, **arguments}
    with pytest.raises(error, match=message):
        GraphAttention(FEATURES, WIDTH)(**arguments)


def test_a_mask_of_another_shape():
    """One of [edges] would broadcast over the heads where there are as many of them."""
    graph = EdgeList.from_edge_index(torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    with pytest.raises(ValueError, match=r"mask has shape \(2,\), expected \[2, 1\], an entry for each edge"):
        replace(graph, mask=torch.tensor([True, False]))
    with pytest.raises(TypeError, match=r"mask has dtype torch\.int64"):
        replace(graph, mask=torch.tensor([[1], [0]]))


@pytest.mark.parametrize("scores", ["gat", "gatv2"])
def test_a_negative_slope_below_zero(data, scores):
    layer = GraphAttention(FEATURES, WIDTH, negative_slope=-0.1, scores=scores)
    layer(data.features, data.edge_index).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)


def test_self_loops_need_one_set_of_nodes():
    layer = GraphAttention((FEATURES, 2), WIDTH)
    with pytest.raises(ValueError, match="add_self_loops needs one set of nodes, got 7 sources and 4 targets"):
        layer((torch.zeros(7, FEATURES), torch.zeros(4, 2)), torch.zeros(2, 1, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"out_channels": 0}, "all must be >= 1"),
        ({"heads": 0}, "all must be >= 1"),
        ({"in_channels": (3, 0)}, "all must be >= 1"),
        ({"scores": "gatv3"}, "scores is 'gatv3', expected one of gat, gatv2"),
        ({"share_weights": True}, "share_weights is of scores='gatv2'"),
        ({"scores": "gatv2", "share_weights": True, "in_channels": (3, 2)}, r"in_channels is \(3, 2\), so"),
        ({"edge_dim": 2, "fill_value": "median"}, "fill_value is 'median', expected a number or one of mean, add"),
    ],
    ids=str,
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        GraphAttention(**{"in_channels": 3, "out_channels": 4, **options})
