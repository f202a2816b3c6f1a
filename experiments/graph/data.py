"""The graph of a run, with the labels removed and the noise added that its options ask for."""

from __future__ import annotations

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData, load_graph
from experiments.datasets.graphs.masked import read_own_graph
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels
from experiments.graph.config import GraphConfig
from pyro_attention import EdgeList

__all__ = ["chosen_graph", "load_data", "noise_edges", "perturbed"]


def chosen_graph(config: GraphConfig) -> GraphData:
    """The graph that the options name, as it is."""
    if config.graph is not None:
        return read_own_graph(config.graph, split_seed=config.split_seed)
    return load_graph(config.dataset, data_root=config.data_root, split_seed=config.split_seed)


def perturbed(data: GraphData, config: GraphConfig) -> GraphData:
    """A graph with the labels removed and the noise added that the options ask for."""
    if config.labels_per_class is not None:
        data = limit_labels(data, config.labels_per_class, seed=config.seed)
    if config.feature_noise:
        data = add_feature_noise(data, config.feature_noise, seed=config.seed)
    if config.edge_noise:
        data = add_edge_noise(data, config.edge_noise, seed=config.seed)
    return data


def load_data(config: GraphConfig) -> GraphData:
    """The graph as the options ask for it."""
    return perturbed(chosen_graph(config), config)


def noise_edges(genuine: GraphData, graph: EdgeList) -> Tensor:
    """True at the edges of a run's graph that are neither those of the genuine one nor self loops."""
    count, sources, targets = genuine.num_nodes, graph.sources.index, graph.targets.index
    edges = genuine.edge_index.to(sources.device)
    known = torch.isin(sources * count + targets, edges[0] * count + edges[1])
    return ~known & (sources != targets)
