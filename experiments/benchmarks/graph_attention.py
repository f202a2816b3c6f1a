"""The two attention layers of GAT and GATv2 at Cora's size against PyG's, and whole training steps beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from experiments.benchmarks.timing import Timing, interleave, training_step
from guides.names import WeightsSchemeName
from guides.schemes import build_scheme
from models.gat import GAT
from pyro_attention import EdgeList
from pyro_attention.layers.graph import GraphScores

__all__ = ["FEATURES", "our_layers", "pyg_layers", "random_graph", "run"]

NODES, EDGES, FEATURES, CLASSES, LABELLED = 2708, 10556, 64, 7, 140


def random_graph(nodes: int = NODES, edges: int = EDGES, *, seed: int = 0) -> Tensor:
    """A random symmetric graph without self loops, by default with as many nodes and edges as Cora: ``[2, edges]``."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "device": "cpu"}  # the same graph for every device
    source = torch.randint(nodes, (edges // 2,), **options)
    target = (source + torch.randint(1, nodes, (edges // 2,), **options)) % nodes
    graph = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return graph.to(torch.get_default_device())


def pyg_layers(
    x: Tensor, edge_index: Tensor, *, classes: int = CLASSES, output_heads: int = 1, scores: GraphScores = "gat"
) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs of PyG's two layers."""
    from torch_geometric.nn import GATConv, GATv2Conv

    conv = GATConv if scores == "gat" else GATv2Conv
    first, second = conv(FEATURES, 8, heads=8), conv(64, classes, heads=output_heads, concat=False)

    def step() -> None:
        second(nn.functional.elu(first(x, edge_index)), edge_index).sum().backward()

    return step


def our_layers(
    scheme_name: WeightsSchemeName,
    x: Tensor,
    graph: EdgeList,
    *,
    classes: int = CLASSES,
    output_heads: int = 1,
    scores: GraphScores = "gat",
) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs and of the KL, through guide and ELBO."""
    scheme = build_scheme(scheme_name)
    options: dict[str, Any] = {"output_heads": output_heads, "scores": scores, "prior": scheme.prior}
    network = GAT(FEATURES, classes, dropout=0.0, **options).layers

    class Layers(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> None:
            first, second = self.network
            hidden = nn.functional.elu(first(x, graph))
            pyro.factor("output", second(hidden, graph).sum())

    model = Layers()
    loss = scheme.elbo(model, scheme.guide(model))
    return lambda: loss(x).backward()


def _training_step(scheme_name: WeightsSchemeName, x: Tensor, graph: EdgeList) -> Callable[[], Tensor]:
    """A whole step: dropout, likelihood of the labels, KL and Adam."""
    scheme = build_scheme(scheme_name)
    model = GAT(FEATURES, CLASSES, prior=scheme.prior)
    loss = scheme.elbo(model, scheme.guide(model))
    labels, labelled = torch.randint(CLASSES, (NODES,)), torch.arange(NODES) < LABELLED
    return training_step(loss, x, graph, labels, labelled)


def run(*, rounds: int = 50) -> dict[str, Timing]:
    """Time PyG's layers (the references), ours under Soft and Weibull, and whole training steps of both."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(NODES, FEATURES), random_graph()
    graph = EdgeList.from_edge_index(edge_index, num_nodes=NODES, add_self_loops=True)
    timings = interleave(
        {
            "PyG GATConv, two layers": pyg_layers(x, edge_index),
            "soft, two layers": our_layers("soft", x, graph),
            "Weibull, contextual Gamma prior, two layers": our_layers("weibull", x, graph),
            "soft, whole training step": _training_step("soft", x, graph),
            "Weibull, contextual Gamma prior, whole training step": _training_step("weibull", x, graph),
        },
        rounds=rounds,
    )
    second = interleave(
        {
            "PyG GATv2Conv, two layers": pyg_layers(x, edge_index, scores="gatv2"),
            "GATv2, soft, two layers": our_layers("soft", x, graph, scores="gatv2"),
            "GATv2, Weibull, contextual Gamma prior, two layers": our_layers("weibull", x, graph, scores="gatv2"),
        },
        rounds=rounds,
    )
    return timings | second
