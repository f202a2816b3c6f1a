"""The two attention layers of GAT at Cora's size against PyG's GATConv, and whole training steps beside them."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from experiments.benchmarks.timing import Timing, interleave
from guides import SchemeName, build_scheme
from models.gat import GAT
from pyro_attention import EdgeList

__all__ = ["NODES", "random_graph", "run"]

NODES, EDGES, FEATURES, CLASSES, LABELLED = 2708, 10556, 64, 7, 140


def random_graph(seed: int = 0) -> Tensor:
    """A random symmetric graph with as many nodes and edges as Cora, without self loops: ``[2, 10556]``."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(NODES, (EDGES // 2,), generator=generator)
    target = (source + torch.randint(1, NODES, (EDGES // 2,), generator=generator)) % NODES
    return torch.stack([torch.cat([source, target]), torch.cat([target, source])])


def _pyg_layers(x: Tensor, edge_index: Tensor) -> Callable[[], None]:
    from torch_geometric.nn import GATConv

    first, second = GATConv(FEATURES, 8, heads=8), GATConv(64, CLASSES, heads=1, concat=False)

    def step() -> None:
        second(nn.functional.elu(first(x, edge_index)), edge_index).sum().backward()

    return step


def _our_layers(scheme_name: SchemeName, x: Tensor, graph: EdgeList) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs and of the KL, through guide and ELBO."""
    scheme = build_scheme(scheme_name)
    network = GAT(FEATURES, CLASSES, dropout=0.0, prior=scheme.prior).layers

    class Layers(PyroModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> None:
            first, second = self.network
            hidden = nn.functional.elu(first(x, graph).context)
            pyro.factor("output", second(hidden, graph).context.sum())

    model = Layers()
    loss = scheme.elbo(model, scheme.guide(model))
    return lambda: loss(x).backward()


def _training_step(scheme_name: SchemeName, x: Tensor, graph: EdgeList) -> Callable[[], None]:
    """A whole step: dropout, likelihood of the labels, KL and Adam."""
    scheme = build_scheme(scheme_name)
    model = GAT(FEATURES, CLASSES, prior=scheme.prior)
    loss = scheme.elbo(model, scheme.guide(model))
    labels, labelled = torch.randint(CLASSES, (NODES,)), torch.arange(NODES) < LABELLED
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)

    def step() -> None:
        optimiser.zero_grad()
        loss(x, graph, labels, labelled).backward()
        optimiser.step()

    return step


def run(*, rounds: int = 50) -> dict[str, Timing]:
    """Time PyG's layers (the reference), ours under Soft and Weibull, and whole training steps of both."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(NODES, FEATURES), random_graph()
    graph = EdgeList.from_edge_index(edge_index, num_nodes=NODES, add_self_loops=True)
    return interleave(
        {
            "PyG GATConv, two layers": _pyg_layers(x, edge_index),
            "soft, two layers": _our_layers("soft", x, graph),
            "Weibull, contextual Gamma prior, two layers": _our_layers("weibull", x, graph),
            "soft, whole training step": _training_step("soft", x, graph),
            "Weibull, contextual Gamma prior, whole training step": _training_step("weibull", x, graph),
        },
        rounds=rounds,
    )
