"""The attention of a trained network beside uniform attention: how far away it is, and what it is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from statistics import fmean

import torch
from torch import Tensor, nn

from experiments.datasets.graphs.load import GraphData
from experiments.graph.model import TrainedGraph
from pyro_attention import EdgeList, GraphAttention, Softmax, predict

__all__ = [
    "attention_to_other_classes",
    "relative_attention",
    "relative_entropies",
    "uniform_attention",
    "uniform_logits",
]


def relative_entropies(weights: Mapping[str, Tensor], graph: EdgeList) -> list[Tensor]:
    """Entropy of attention relative to uniform attention, of every layer ``[S, nodes with neighbours, H]``."""
    neighbours = graph.targets.index.bincount(minlength=graph.targets.count)
    several = neighbours > 1
    return [
        (graph.targets.sum(torch.special.entr(layer)) / neighbours.log().unsqueeze(-1))[:, several]
        for layer in weights.values()
    ]


def relative_attention(weights: Mapping[str, Tensor], graph: EdgeList, edges: Tensor) -> float:
    """Attention on some edges, relative to uniform attention."""
    uniform = 1 / graph.targets.index.bincount(minlength=graph.targets.count)[graph.targets.index]
    share = uniform[edges].sum()
    return fmean((layer[:, edges].sum(1) / share).mean().item() for layer in weights.values())


def attention_to_other_classes(weights: Mapping[str, Tensor], graph: EdgeList, data: GraphData) -> float | None:
    """Attention on the edges that join different classes, relative to uniform attention; None where there are none.

    Edges of nodes that are in no mask, whose class may not be known, do not count.
    """
    known = data.train_mask | data.val_mask | data.test_mask
    sources, targets = graph.sources.index, graph.targets.index
    edges = known[sources] & known[targets] & (data.labels[sources] != data.labels[targets])
    return relative_attention(weights, graph, edges) if edges.any() else None


@contextmanager
def uniform_attention(model: nn.Module) -> Iterator[None]:
    """Equal scores and a softmax, which make the attention over the neighbours uniform; put back at the end.

    The softmax stands in for normalizers over queries too, under which equal scores are not uniform attention.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, GraphAttention)]
    scores = [(parameter, parameter.detach().clone()) for layer in layers for parameter in layer.score.parameters()]
    normalizers = [layer.attention.normalizer for layer in layers]
    try:
        with torch.no_grad():
            for parameter, _ in scores:
                parameter.zero_()
        for layer in layers:
            layer.attention.normalizer = Softmax()
        yield
    finally:
        with torch.no_grad():
            for parameter, value in scores:
                parameter.copy_(value)
        for layer, normalizer in zip(layers, normalizers, strict=True):
            layer.attention.normalizer = normalizer


def uniform_logits(trained: TrainedGraph) -> Tensor:
    """Logits of all nodes ``[N, classes]`` with uniform attention in place of the learned one."""
    with uniform_attention(trained.model):
        return predict(trained.guide, *trained.inputs, num_samples=1, noise="none").mean
