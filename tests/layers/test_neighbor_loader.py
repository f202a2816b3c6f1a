"""Batches of PyG's NeighborLoader go through our layers as through PyG's.

The loader itself needs pyg-lib or torch-sparse. Where neither is installed, the same batches are built by hand: the
seed nodes first, then their neighbours within as many steps as the network has layers, with new numbers.
"""

from importlib.util import find_spec

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from pyro_attention import AttentionGuide, GraphAttention, Soft, Weibull, predict

NODES, FEATURES, SEEDS = 30, 6, torch.tensor([3, 17, 8, 25])
SAMPLERS = any(find_spec(name) for name in ("pyg_lib", "torch_sparse"))
both_convs = pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv])


class Network(nn.Module):
    """Two layers, as PyG's examples of the loader write them: the seed nodes are the first ones of a batch."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def networks(conv: type, **options: bool) -> tuple[Network, Network]:
    """A network of PyG's layers, and the same of ours with its weights."""
    theirs = Network(conv(FEATURES, 4, heads=2, **options), conv(8, 3, heads=2, concat=False, **options))
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.7)
    theirs.double()
    return theirs, Network(GraphAttention.from_pyg(theirs.first), GraphAttention.from_pyg(theirs.second))


@pytest.fixture
def graph() -> Data:
    edges = torch.randint(NODES, (2, 90))
    return Data(
        x=torch.randn(NODES, FEATURES, dtype=torch.float64), edge_index=edges[:, edges[0] != edges[1]].unique(dim=1)
    )


def batch_of(graph: Data) -> Data:
    """What ``NeighborLoader(graph, [-1, -1], input_nodes=SEEDS, batch_size=len(SEEDS))`` gives first."""
    nodes, _, _, _ = k_hop_subgraph(SEEDS, 2, graph.edge_index, num_nodes=NODES)
    nodes = torch.cat([SEEDS, nodes[~torch.isin(nodes, SEEDS)]])
    new = torch.full((NODES,), -1)
    new[nodes] = torch.arange(len(nodes))
    # a neighbour two steps away has edges to those one step away alone
    one_step, _, _, _ = k_hop_subgraph(SEEDS, 1, graph.edge_index, num_nodes=NODES)
    kept = torch.isin(graph.edge_index[1], one_step)
    return Data(x=graph.x[nodes], edge_index=new[graph.edge_index[:, kept]], n_id=nodes, batch_size=len(SEEDS))


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@both_convs
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_seed_nodes_of_a_batch(graph: Data, conv: type, add_self_loops: bool) -> None:
    theirs, mine = networks(conv, add_self_loops=add_self_loops)
    batch = batch_of(graph)
    assert (batch.edge_index >= 0).all()
    assert batch.num_nodes < NODES or batch.num_edges < graph.num_edges
    expected = theirs(batch.x, batch.edge_index)[: batch.batch_size]
    assert_same(expected, theirs(graph.x, graph.edge_index)[SEEDS])  # all their neighbours are there
    assert_same(mine(batch.x, batch.edge_index)[: batch.batch_size], expected)
    assert_same(AttentionGuide(mine, Soft()).run(batch.x, batch.edge_index).output[: batch.batch_size], expected)
    whole = predict(AttentionGuide(mine, Weibull()), graph.x, graph.edge_index, num_samples=1, noise="none").mean
    part = predict(AttentionGuide(mine, Weibull()), batch.x, batch.edge_index, num_samples=1, noise="none").mean
    assert_same(part[: batch.batch_size], whole[SEEDS])


@both_convs
def test_bipartite_step(graph: Data, conv: type) -> None:
    """One step from all nodes of a batch to its seed nodes: ``(x, x[:batch_size])``, which self loops do not fit."""
    theirs = conv((FEATURES, FEATURES), 4, heads=2, add_self_loops=False).double()
    batch = batch_of(graph)
    edges = batch.edge_index[:, batch.edge_index[1] < batch.batch_size]
    pair = batch.x, batch.x[: batch.batch_size]
    mine = GraphAttention.from_pyg(theirs)
    assert_same(mine(pair, edges), theirs(pair, edges))
    assert_same(mine(pair, edges, size=(batch.num_nodes, len(SEEDS))), theirs(pair, edges))
    with pytest.raises(ValueError, match="add_self_loops needs one set of nodes"):
        GraphAttention((FEATURES, FEATURES), 4).double()(pair, edges)
    with pytest.raises(ValueError, match="target"):
        mine(pair, batch.edge_index)  # has edges to nodes that are no seeds


@pytest.mark.skipif(not SAMPLERS, reason="NeighborLoader needs pyg-lib or torch-sparse")
@both_convs
def test_the_loader_itself(graph: Data, conv: type) -> None:
    from torch_geometric.loader import NeighborLoader

    theirs, mine = networks(conv)
    (batch,) = NeighborLoader(graph, num_neighbors=[-1, -1], input_nodes=SEEDS, batch_size=len(SEEDS))
    assert_same(mine(batch.x, batch.edge_index), theirs(batch.x, batch.edge_index))
    assert sorted(batch.n_id.tolist()) == sorted(batch_of(graph).n_id.tolist())
