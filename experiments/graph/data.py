"""The graph of a run, with the labels removed and the noise added that its options ask for."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.graphs.load import GraphData, load_graph, read_own_graph
from experiments.datasets.graphs.perturbations import add_edge_noise, add_feature_noise, limit_labels
from experiments.files import UserError, read_json, write_atomic
from experiments.graph.config import GraphConfig
from experiments.harness.ranks import is_first
from pyro_attention import EdgeList

__all__ = ["check_same_graph", "chosen_graph", "load_data", "noise_edges", "perturbed"]

_FIELDS = ("features", "labels", "edge_index", "train_mask", "val_mask", "test_mask")


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


def check_same_graph(graph: GraphData, folder: Path) -> None:
    """Note in the folder of a run which graph it has, or check that it is the one that the run was begun with.

    Raises:
        UserError: The folder has another graph, or its graph.json is damaged.
    """
    path = folder / "graph.json"
    found = {name: _digest(getattr(graph, name)) for name in _FIELDS} | {"metric": graph.metric}
    if not path.is_file():
        # where there are metrics it is a run from before there were fingerprints, and maybe not to be written to
        if not is_first() or (folder / "metrics.json").is_file():
            return
        write_atomic(path, lambda file: file.write((json.dumps(found, indent=2) + "\n").encode()))
        return
    before = read_json(path, "pass --overwrite to train again")
    differing = [name for name, digest in found.items() if before.get(name) != digest]
    if differing:
        raise UserError(
            f"{folder} holds a run on another graph ({', '.join(differing)} differ), expected the one that it was "
            f"begun with; choose another --out, or pass --overwrite to remove that run"
        )


def _digest(values: Tensor) -> str:
    """SHA-256 of a tensor: its shape and its numbers; of a sparse one those that are stored, and their places."""
    parts = (values.indices(), values.values()) if values.is_sparse else (values,)
    found = sha256(str(list(values.shape)).encode())
    for part in parts:
        found.update(part.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def noise_edges(genuine: GraphData, graph: EdgeList) -> Tensor:
    """True at the edges of a run's graph that are neither those of the genuine one nor self loops."""
    count, sources, targets = genuine.num_nodes, graph.sources.index, graph.targets.index
    edges = genuine.edge_index.to(sources.device)
    known = torch.isin(sources * count + targets, edges[0] * count + edges[1])
    return ~known & (sources != targets)
