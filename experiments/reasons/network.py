"""Graph attention of one layer that reads neighbors, its training, and its edges by PyG's explainers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro.distributions import Categorical
from torch import Tensor, nn

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    EdgeList,
    GraphAttention,
    NodeLikelihood,
    Soft,
    elbo_for,
)
from pyro_attention.families.base import Family, Prior
from pyro_attention.guide import attention_weights

HIDDEN = 16


@dataclass(frozen=True)
class NodeData:
    """Nodes to classify by their neighbors."""

    x: Tensor  # features [N, width]
    edges: Tensor  # [2, E], sources first
    y: Tensor  # classes [N]
    mask: Tensor | None = None  # nodes whose class counts; all of them when omitted

    @property
    def graph(self) -> EdgeList:
        """Layout of the edges."""
        return EdgeList.from_edge_index(self.edges, num_nodes=len(self.x))


class Reader(pyro.nn.PyroModule):
    """Graph attention (GATv2) of one head, and a linear map from its context to the class of a node.

    With ``mixes`` the class of a node is that of one neighbor, and a prediction averages over neighbors.
    """

    def __init__(self, prior: Prior, *, width: int, classes: int, mixes: bool = False) -> None:
        super().__init__()
        self.attention = GraphAttention(
            width, HIDDEN, add_self_loops=False, scores="gatv2", prior=prior, name="neighbor"
        )
        self.head, self.mixes = nn.Linear(HIDDEN, classes), mixes

    def forward(self, x: Tensor, graph: EdgeList, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        output = self.attention.attend(x, graph)
        logits: Tensor = self.head(output.context)
        pyro.sample("y", NodeLikelihood(Categorical(logits=logits), output, mask=mask), obs=y)
        return logits


def train(
    model: Reader, family: Family, data: NodeData, valid: NodeData, *, steps: int, kl_weight: float = 1.0
) -> Callable[[], None]:
    """Train a network, leave it with the weights of its best accuracy on validation data, and return its step."""
    guide = AttentionGuide(model, family)
    elbo = elbo_for(guide, max_plate_nesting=0)
    if isinstance(elbo, AttentionELBO):
        elbo.kl_weight = kl_weight
    loss, graph = elbo(model, guide), data.graph
    optimizer = torch.optim.Adam(loss.parameters(), 0.01, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss(data.x, graph, data.y, data.mask).backward()
        optimizer.step()

    best, best_weights = -1.0, model.state_dict()
    for number in range(1, steps + 1):
        step()
        if number % 25 == 0:
            share = accuracy(predicted(model, valid)[0], valid)
            if share > best:
                best, best_weights = share, deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    return step


def predicted(model: Reader, data: NodeData) -> tuple[Tensor, Tensor]:
    """Return probabilities of the classes ``[N, classes]``, and the mean attention to every edge.

    Under an alignment prior each neighbor has its own probabilities, and the mean over them counts, as in training.
    """
    with torch.no_grad():
        run = AttentionGuide(model, Soft()).run(data.x, data.graph, data.y)
        site: Any = run.trace.nodes["neighbor"]
        weights = attention_weights(site)
        if not model.mixes:
            return run.output.softmax(-1), weights
        by_edge = model.head(model.attention.lin_src(data.x) + model.attention.bias).softmax(-1)[data.edges[0]]
        probabilities = by_edge.new_zeros(len(data.x), by_edge.size(-1))
        return probabilities.index_add(0, data.edges[1], weights * by_edge), weights


def accuracy(probabilities: Tensor, data: NodeData) -> float:
    """Return the share of labels that are the most probable ones."""
    right = (probabilities.argmax(-1) == data.y).float()
    return (right if data.mask is None else right[data.mask]).mean().item()


def explain_by_pyg(model: Reader, data: NodeData, algorithm: Any, kind: str) -> Tensor:
    """Return the edge mask of an explainer of PyG, for the labels of all nodes at once.

    The explainer explains the same network in PyG's layers.
    """
    from torch_geometric.explain import Explainer
    from torch_geometric.nn import GATv2Conv, Sequential

    attention = model.attention
    conv = GATv2Conv(attention.in_channels, HIDDEN, attention.heads, add_self_loops=False)
    names = {"lin_src.": "lin_l.", "lin_dst.": "lin_r.", "score.att": "att"}
    state = {
        next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), name): value
        for name, value in attention.state_dict().items() if not name.startswith("attention.")
    }  # fmt: skip
    conv.load_state_dict(state)
    network = Sequential("x, edge_index", [(conv, "x, edge_index -> x"), model.head])
    explainer = Explainer(
        network, algorithm, explanation_type=kind, edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    target = data.y if kind == "phenomenon" else None
    return explainer(data.x, data.edges, target=target).edge_mask.detach()
