"""Graph attention layers on a graph of any size: what graph_scaling measures, and how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from experiments.benchmarks.graph_attention import FEATURES, our_layers, pyg_layers, random_graph
from experiments.benchmarks.report import sized_metrics
from experiments.benchmarks.timing import Timing, interleave
from experiments.datasets.arrays import read_arrays
from experiments.datasets.places import data_folder
from experiments.files import reading
from guides.names import WeightsSchemeName
from pyro_attention import EdgeList

__all__ = ["CONTESTANTS", "Contestant", "Graph", "Measurement", "growth", "make_step", "pubmed", "time_per_edge"]

Contestant = Literal["GATConv", "Soft", "WC"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
CLASSES, OUTPUT_HEADS = 3, 8  # PubMed's
SMALL, LARGE = 100_000, 1_000_000  # edges of the graphs whose times per edge are compared
PUBMED_NODES, PUBMED_EDGES = 19717, 88648
TOPOLOGY = Path("planetoid", "pubmed_topology.npz")
REMEDY = "Put an intact copy there, or remove it to measure on a random graph of PubMed's size."


@dataclass(frozen=True)
class Graph:
    """A random graph by its size, or one by its npz file; small enough to be sent to another process.

    Edges are directed, and counted without the self loops that the layers add.
    """

    nodes: int
    edges: int
    file: Path | None = None

    def edge_index(self) -> torch.Tensor:
        """Sources and targets, int64 ``[2, edges]``."""
        if self.file is None:
            return random_graph(self.nodes, self.edges)
        return torch.from_numpy(read_arrays(self.file)["edge_index"])


@dataclass(frozen=True)
class Measurement:
    """Layers on one graph: rounds of the timing, times whose ratios are to GATConv, and peak memory in MB."""

    graph: Graph
    rounds: int
    times: dict[Contestant, Timing]
    peaks: dict[Contestant, float]

    def numbers(self, size: str) -> dict[str, float]:
        """Numbers by names such as ``pubmed/WC/ms``; without the ratio where GATConv took no part."""
        kept = {"ms", "peak_mb", *(["ratio"] if "GATConv" in self.times else [])}
        found = sized_metrics(size, self.times, self.peaks)
        return {name: value for name, value in found.items() if name.rpartition("/")[2] in kept}


def pubmed(data_root: Path | None) -> Graph:
    """PubMed's graph from ``planetoid/pubmed_topology.npz``, or a random one of its size where there is no such file.

    Raises:
        UserError: The file is damaged or no graph.
    """
    path = data_folder(data_root) / TOPOLOGY
    if not path.is_file():
        return Graph(PUBMED_NODES, PUBMED_EDGES)
    with reading(path, "arrays y and edge_index, int64 [2, edges]", REMEDY):
        arrays = read_arrays(path)
        edge_index, nodes = arrays["edge_index"], len(arrays["y"])
        if (
            edge_index.dtype != np.int64
            or edge_index.shape[0] != 2
            or not 0 <= edge_index.min() <= edge_index.max() < nodes
        ):
            raise ValueError(f"edge_index is {edge_index.dtype} {edge_index.shape} of {nodes} nodes")
    return Graph(nodes, edge_index.shape[1], path)


def make_step(contestant: Contestant, graph: Graph) -> Callable[[], None]:
    """Forward and backward of both layers; input features are random, our edge list is built beforehand."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(graph.nodes, FEATURES), graph.edge_index()
    if contestant == "GATConv":
        return pyg_layers(x, edge_index, classes=CLASSES, output_heads=OUTPUT_HEADS)
    edges = EdgeList.from_edge_index(edge_index, num_nodes=graph.nodes, add_self_loops=True)
    scheme: WeightsSchemeName = "soft" if contestant == "Soft" else "weibull"
    return our_layers(scheme, x, edges, classes=CLASSES, output_heads=OUTPUT_HEADS)


def time_per_edge(contestant: Contestant, small: Graph, large: Graph, *, rounds: int = 10) -> dict[str, float]:
    """Time per edge on the large graph over that on the small one, both in turn: median and 10-90 % over rounds."""
    steps = {str(graph.edges): make_step(contestant, graph) for graph in (small, large)}
    found, edges = interleave(steps, rounds=rounds, warm_up=2)[str(large.edges)], large.edges / small.edges
    ratios = {"per_edge": found.ratio, "per_edge_low": found.ratio_low, "per_edge_high": found.ratio_high}
    return {name: ratio / edges for name, ratio in ratios.items()}


def growth(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log cost against log size, by least squares: 1 is linear growth; NaN for fewer than two sizes.

    Example:
        >>> round(growth([1, 10, 100], [5, 500, 50000]), 6)
        2.0
    """
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
