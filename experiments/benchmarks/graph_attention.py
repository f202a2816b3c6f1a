"""The two attention layers of GAT and GATv2 beside PyG's: at Cora's and PubMed's sizes, and by the number of edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from experiments.benchmarks.measuring import Benchmark
from guides.schemes import build_scheme
from models.gat import GAT
from pyro_attention import EdgeList
from pyro_attention.layers.graph import GraphScores

FEATURES = 64
CONTESTANTS = ("GATConv", "Soft", "WC")


@dataclass(frozen=True)
class Graph:
    """Sizes of a random symmetric graph, and of the output layer; edges are counted without self loops."""

    nodes: int
    edges: int  # directed
    scores: GraphScores = "gat"
    classes: int = 3  # PubMed's
    output_heads: int = 8

    def edge_index(self) -> Tensor:
        """Sources and targets, int64 ``[2, edges]``."""
        generator = torch.Generator().manual_seed(0)
        source = torch.randint(self.nodes, (self.edges // 2,), generator=generator)
        target = (source + torch.randint(1, self.nodes, (self.edges // 2,), generator=generator)) % self.nodes
        return torch.stack([torch.cat([source, target]), torch.cat([target, source])])


class _Layers(PyroModule):
    """The layers of a GAT, observed through the sum of the outputs."""

    def __init__(self, network: GAT) -> None:
        super().__init__()
        self.layers = network.layers

    def forward(self, x: Tensor, graph: EdgeList) -> None:
        first, second = self.layers
        pyro.factor("output", second(nn.functional.elu(first(x, graph)), graph).sum())


def make_step(contestant: str, graph: Graph) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs, and of the KL; our edge list is built beforehand."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(graph.nodes, FEATURES), graph.edge_index()
    if contestant == "GATConv":
        return _pyg_layers(x, edge_index, graph)
    edges = EdgeList.from_edge_index(edge_index, num_nodes=graph.nodes, add_self_loops=True)
    scheme = build_scheme("soft" if contestant == "Soft" else "weibull")
    options: dict[str, Any] = {"output_heads": graph.output_heads, "scores": graph.scores, "prior": scheme.prior}
    model = _Layers(GAT(FEATURES, graph.classes, dropout=0.0, **options))
    loss = scheme.elbo(model, scheme.guide(model))
    return lambda: loss(x, edges).backward()


def _pyg_layers(x: Tensor, edge_index: Tensor, graph: Graph) -> Callable[[], None]:
    from torch_geometric.nn import GATConv, GATv2Conv

    conv = GATConv if graph.scores == "gat" else GATv2Conv
    first, second = conv(FEATURES, 8, heads=8), conv(64, graph.classes, heads=graph.output_heads, concat=False)
    return lambda: second(nn.functional.elu(first(x, edge_index)), edge_index).sum().backward()


LAYERS = Benchmark(
    title="Graph attention layers",
    text="Forward and backward of the two attention layers of a GAT (64-wide dense input, 8 heads of 8) on random "
    "graphs: of Cora's size (7 classes, one output head), of PubMed's (3 classes, 8 averaged heads) and, with PubMed's "
    "heads, of 20000 nodes. WC: Weibull posterior, contextual Gamma prior, KL included. Soft: the same layers, "
    "deterministic. GATConv: PyG's layers, GATv2Conv for GATv2. Edges are counted without self loops.",
    make_step=make_step,
    contestants=CONTESTANTS,
    sizes={
        "Cora": Graph(2708, 10556, classes=7, output_heads=1),
        "Cora, GATv2": Graph(2708, 10556, "gatv2", classes=7, output_heads=1),
        "PubMed": Graph(19717, 88648),
        **{f"{n} edges": Graph(20_000, n) for n in (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)},
    },
    rounds=20,
)
