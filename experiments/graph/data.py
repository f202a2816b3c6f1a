"""The graph of a run, with the labels removed and the noise added that its options ask for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData, load_graph
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels
from experiments.graph.config import GraphConfig
from pyro_attention import EdgeList

__all__ = ["load_data", "noise_edges"]


def load_data(config: GraphConfig) -> GraphData:
    """The graph as the options ask for it."""
    data = load_graph(config.dataset, data_root=config.data_root, split_seed=config.split_seed)
    if config.labels_per_class is not None:
        data = limit_labels(data, config.labels_per_class, seed=config.seed)
    if config.feature_noise:
        data = add_feature_noise(data, config.feature_noise, seed=config.seed)
    if config.edge_noise:
        data = add_edge_noise(data, config.edge_noise, seed=config.seed)
    return data


def noise_edges(config: GraphConfig, data: GraphData, graph: EdgeList) -> Tensor | None:
    """True at the edges of a run's graph that are noise; None where none was added."""
    if not config.edge_noise:
        return None
    count, sources, targets = data.num_nodes, graph.sources.index, graph.targets.index
    genuine = load_data(replace(config, edge_noise=0.0)).edge_index.to(sources.device)
    known = torch.isin(sources * count + targets, genuine[0] * count + genuine[1])
    return ~known & (sources != targets)
