"""Intervals of the weights of a graph's edges, with the edges that they belong to."""

import math

import pytest
import torch

from pyro_attention import AttentionGuide, GraphAttention, Weibull, sample_posterior
from pyro_attention.analysis import edge_intervals
from tests.toy_models import GraphData

EDGES = torch.tensor([[0, 1, 2, 1], [1, 1, 1, 0]])  # node 1 has three in-edges, one of them a self loop
ROWS = torch.tensor([[0.5], [0.3], [0.2], [1.0]])


def samples(add_self_loops, edge_index, *, num_samples=40):
    """Posterior weights of a layer."""
    data = GraphData.random()
    layer = GraphAttention(5, 3, heads=2, add_self_loops=add_self_loops)
    guide = AttentionGuide(lambda x: layer(x, edge_index), Weibull(3.0))
    return sample_posterior(guide, data.features, num_samples=num_samples, seed=0)["graph_attention"]


@pytest.mark.parametrize("add_self_loops", [True, False])
def test_rows_are_labelled(add_self_loops):
    data = GraphData.random()
    weights = samples(add_self_loops, data.edge_index)
    found = edge_intervals(weights, data.edge_index, level=0.8)
    edges, nodes = data.edge_index.size(1), len(data.features)
    assert torch.equal(torch.stack([found.source, found.target])[:, :edges], data.edge_index)
    assert found.added.tolist() == [False] * edges + [True] * nodes * add_self_loops
    assert found.source[found.added].equal(found.target[found.added])
    assert found.source[found.added].tolist() == list(range(nodes * add_self_loops))
    torch.testing.assert_close(found.mean, weights.mean(0))
    ends = weights.quantile(torch.tensor([0.1, 0.9]), dim=0)
    torch.testing.assert_close(torch.stack([found.low, found.high]), ends)
    torch.testing.assert_close(found.width, ends[1] - ends[0])
    # a self loop of the input is replaced by the added one
    replaced = data.edge_index[0] == data.edge_index[1]
    assert replaced.any()
    assert (found.mean[:edges][replaced] == 0).all() == add_self_loops


def test_more_numbers_than_quantile_takes():
    edge_index = torch.stack([torch.zeros(100_000, dtype=torch.int64), torch.arange(100_000)])
    found = edge_intervals(torch.ones(200, 100_000, 1), edge_index)
    assert (found.low == 1).all()
    assert found.high.shape == (100_000, 1)


@pytest.mark.parametrize(
    ("values", "edge_index", "options", "error", "message"),
    [
        (ROWS[None], EDGES, {}, ValueError, r"samples have shape \(1, 4, 1\), expected \[S, E, H\]: at least two"),
        (ROWS, EDGES, {}, ValueError, r"samples have shape \(4, 1\), expected \[S, E, H\]"),
        (ROWS.expand(2, 3, 4, 1), EDGES, {}, ValueError, "choose one graph of a batch before"),
        (torch.zeros(2, 0, 1), EDGES[:, :0], {}, ValueError, r"samples have shape \(2, 0, 1\)"),
        ([1.0], EDGES, {}, TypeError, "samples have type list, expected a floating-point tensor"),
        (ROWS.expand(2, 4, 1).long(), EDGES, {}, TypeError, "samples have dtype torch.int64"),
        (ROWS.expand(2, 4, 1).log(), EDGES, {}, ValueError, "an entry -0.6931, .* leave out log_weights=True"),
        (ROWS.expand(2, 4, 1) * math.nan, EDGES, {}, ValueError, "an entry nan, expected weights from 0 to 1"),
        (ROWS.expand(2, 4, 1), EDGES.flip(0), {}, ValueError, r"in-edges of node 0 sum to 0\.5, expected 1; .*order"),
        (ROWS.expand(2, 4, 1), EDGES[:, :2], {}, ValueError, "in-edges of node 0 sum to 0.2, expected 1"),
        (ROWS.expand(2, 4, 1), EDGES[:, :3], {}, ValueError, "samples hold 4 edges, edge_index 3 between 3 nodes"),
        (ROWS[:2].expand(2, 2, 1), EDGES, {}, ValueError, "samples hold 2 edges, edge_index 4 .* expected 4, or"),
        (ROWS.expand(2, 4, 1), EDGES.float(), {}, TypeError, "edge_index has dtype torch.float32"),
        (ROWS.expand(2, 4, 1), EDGES.mT, {}, ValueError, r"edge_index has shape \(4, 2\), expected \[2, edges\]"),
        (ROWS.expand(2, 4, 1), EDGES - 1, {}, ValueError, "edge_index names source nodes -1"),
        (ROWS.expand(2, 4, 1), [[0]], {}, TypeError, "edge_index is a list"),
        (ROWS.expand(2, 4, 1), EDGES, {"level": 1.0}, ValueError, "level is 1.0"),
    ],
)
def test_wrong_input(values, edge_index, options, error, message):
    with pytest.raises(error, match=message):
        edge_intervals(values, edge_index, **options)
