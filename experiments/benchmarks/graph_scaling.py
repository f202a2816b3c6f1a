"""The two attention layers of GAT and GATv2 beside PyG's: at Cora's and PubMed's sizes, and by the number of edges."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("graph_scaling", "ScalingConfig")

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from experiments.benchmarks.config import EDGES, ScalingConfig
from experiments.benchmarks.measuring import (
    Outcome,
    command,
    growth_figure,
    interleave,
    measure,
    progress,
    rows_by_size,
    training_step,
    with_spread,
)
from experiments.datasets.arrays import read_arrays
from experiments.datasets.places import data_folder
from experiments.files import UserError, reading
from guides.names import WeightsSchemeName
from guides.schemes import build_scheme
from models.gat import GAT
from pyro_attention import EdgeList
from pyro_attention.layers.graph import GraphScores

FEATURES = 64
STYLES = {"GATConv": ("0.45", "s"), "Soft": ("#d1495b", "^"), "WC": ("#1b6ca8", "o")}
CONTESTANTS = tuple(STYLES)
NODES = 20_000  # of the random graphs
SMALL, LARGE = 100_000, 1_000_000  # edges of the graphs whose times per edge are compared
TOPOLOGY = Path("planetoid", "pubmed_topology.npz")
MAX_RATIO, MAX_MB = 1.6, 2000  # what is promised of WC at PubMed's size
UPPER = "over graphs with at least a tenth of the most edges"
SLOPES = {
    "slope_ms": f"slope of log time against log edges, {UPPER}",
    "slope_peak_mb": f"slope of log peak memory against log edges, {UPPER}",
    "per_edge": f"time divided by edges, on {LARGE} edges over {SMALL} in the same round, median over rounds",
    "per_edge_low": "10 % quantile of that",
    "per_edge_high": "90 % quantile of that",
}

# Layers


@dataclass(frozen=True)
class Graph:
    """A random symmetric graph by its size, or one by its npz file; small enough to be sent to another process.

    Edges are directed, and counted without the self loops that the layers add.
    """

    nodes: int
    edges: int
    file: Path | None = None

    def edge_index(self) -> Tensor:
        """Sources and targets, int64 ``[2, edges]``; the same for every device."""
        if self.file is not None:
            return torch.from_numpy(read_arrays(self.file)["edge_index"])
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(0), "device": "cpu"}
        source = torch.randint(self.nodes, (self.edges // 2,), **options)
        target = (source + torch.randint(1, self.nodes, (self.edges // 2,), **options)) % self.nodes
        graph = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
        return graph.to(torch.get_default_device())

    def __str__(self) -> str:
        kind = "random, as there is no planetoid/pubmed_topology.npz" if self.file is None else "PubMed's own topology"
        return f"{self.nodes} nodes, {self.edges} directed edges ({kind})"


def pyg_layers(
    x: Tensor, edge_index: Tensor, *, classes: int, output_heads: int, scores: GraphScores = "gat"
) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs of PyG's two layers."""
    from torch_geometric.nn import GATConv, GATv2Conv

    conv = GATConv if scores == "gat" else GATv2Conv
    first, second = conv(FEATURES, 8, heads=8), conv(64, classes, heads=output_heads, concat=False)
    return lambda: second(nn.functional.elu(first(x, edge_index)), edge_index).sum().backward()


class _Layers(PyroModule):
    """The layers of a GAT, observed through the sum of the outputs."""

    def __init__(self, network: GAT) -> None:
        super().__init__()
        self.layers = network.layers

    def forward(self, x: Tensor, graph: EdgeList) -> None:
        first, second = self.layers
        pyro.factor("output", second(nn.functional.elu(first(x, graph)), graph).sum())


def our_layers(
    scheme_name: WeightsSchemeName,
    x: Tensor,
    graph: EdgeList,
    *,
    classes: int,
    output_heads: int,
    scores: GraphScores = "gat",
) -> Callable[[], None]:
    """Forward and backward of the sum of the outputs and of the KL, through guide and ELBO."""
    scheme = build_scheme(scheme_name)
    model = _Layers(GAT(FEATURES, classes, dropout=0.0, output_heads=output_heads, scores=scores, prior=scheme.prior))
    loss = scheme.elbo(model, scheme.guide(model))
    return lambda: loss(x, graph).backward()


def at_cora_size(
    graph: Graph = Graph(2708, 10556), *, classes: int = 7, labelled: int = 140
) -> Iterator[dict[str, Callable[[], object]]]:
    """PyG's layers (the references) and ours, with both scores; with GAT's also training steps.

    A whole step has dropout, the likelihood of the labels, the KL and Adam.
    """
    torch.manual_seed(0)
    x, edge_index = torch.randn(graph.nodes, FEATURES), graph.edge_index()
    edges = EdgeList.from_edge_index(edge_index, num_nodes=graph.nodes, add_self_loops=True)
    options: dict[str, Any] = {"classes": classes, "output_heads": 1}

    def training(scheme_name: WeightsSchemeName) -> Callable[[], object]:
        scheme = build_scheme(scheme_name)
        model = GAT(FEATURES, classes, prior=scheme.prior)
        labels, known = torch.randint(classes, (graph.nodes,)), torch.arange(graph.nodes) < labelled
        return training_step(scheme.elbo(model, scheme.guide(model)), x, edges, labels, known)

    weibull = "Weibull, contextual Gamma prior"
    yield {
        "PyG GATConv, two layers": pyg_layers(x, edge_index, **options),
        "soft, two layers": our_layers("soft", x, edges, **options),
        f"{weibull}, two layers": our_layers("weibull", x, edges, **options),
        "soft, whole training step": training("soft"),
        f"{weibull}, whole training step": training("weibull"),
    }
    options["scores"] = "gatv2"
    yield {
        "PyG GATv2Conv, two layers": pyg_layers(x, edge_index, **options),
        "GATv2, soft, two layers": our_layers("soft", x, edges, **options),
        f"GATv2, {weibull}, two layers": our_layers("weibull", x, edges, **options),
    }


# Growth


def make_step(contestant: str, graph: Graph) -> Callable[[], None]:
    """Forward and backward of both layers; input features are random, our edge list is built beforehand."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(graph.nodes, FEATURES), graph.edge_index()
    options: dict[str, Any] = {"classes": 3, "output_heads": 8}  # PubMed's
    if contestant == "GATConv":
        return pyg_layers(x, edge_index, **options)
    edges = EdgeList.from_edge_index(edge_index, num_nodes=graph.nodes, add_self_loops=True)
    return our_layers("soft" if contestant == "Soft" else "weibull", x, edges, **options)


def pubmed(data_root: Path | None) -> Graph:
    """PubMed's graph from ``planetoid/pubmed_topology.npz``, or a random one of its size where there is no such file.

    Raises:
        UserError: The file is damaged or no graph.
    """
    path = data_folder(data_root) / TOPOLOGY
    if not path.is_file():
        return Graph(19717, 88648)
    with reading(path, "arrays y and edge_index, int64 [2, edges]"):
        arrays = read_arrays(path)
        return Graph(len(arrays["y"]), arrays["edge_index"].shape[1], path)


def rounds_of(graph: Graph, config: ScalingConfig) -> int:
    """Fewer on large graphs."""
    return min(config.rounds, max(5, 5_000_000 // graph.edges))


def measure_all(graphs: Mapping[str, Graph], config: ScalingConfig) -> dict[str, float]:
    """Metrics by the name of a graph, of growing size; each contestant until it would need too much memory."""
    metrics, fitting, before = dict[str, float](), list(CONTESTANTS), ""
    for name, graph in progress(graphs.items(), "graph"):
        if before:
            most = 1e3 * config.max_memory * graphs[before].edges / graph.edges
            fitting = [one for one in fitting if metrics[f"{before}/{one}/peak_mb"] <= most]
        if fitting:
            rounds, before = rounds_of(graph, config), name
            found = measure(name, make_step, fitting, graph, rounds=rounds, warm_up=max(1, rounds // 10))
            kept = ("ms", "peak_mb", *(["ratio"] if "GATConv" in fitting else []))
            metrics |= {key: value for key, value in found.items() if key.rpartition("/")[2] in kept}
    return metrics


def time_per_edge(contestant: str, small: Graph, large: Graph, *, rounds: int = 10) -> dict[str, float]:
    """Time per edge on the large graph over that on the small one, both in turn: median and 10-90 % over rounds."""
    steps = {str(graph.edges): make_step(contestant, graph) for graph in (small, large)}
    found, edges = interleave(steps, rounds=rounds, warm_up=2)[str(large.edges)], large.edges / small.edges
    ratios = {"per_edge": found.ratio, "per_edge_low": found.ratio_low, "per_edge_high": found.ratio_high}
    return {f"{contestant}/{name}": ratio / edges for name, ratio in ratios.items()}


def slopes(metrics: Mapping[str, float], sizes: Sequence[int]) -> dict[str, float]:
    """How time and memory of each contestant grow over the upper decade of sizes: 1 is linear; NaN for one size."""
    found = {}
    for name in CONTESTANTS:
        upper = [size for size in sizes if 10 * size >= max(sizes) and f"{size}_edges/{name}/ms" in metrics]
        for quantity in ("ms", "peak_mb"):
            costs = np.log([metrics[f"{size}_edges/{name}/{quantity}"] for size in upper])
            slope = np.polyfit(np.log(upper), costs, 1)[0] if len(upper) > 1 else math.nan
            found[f"{name}/slope_{quantity}"] = float(slope)
    return found


@command
def run(config: ScalingConfig) -> Outcome:
    """Measure at PubMed's size and by the number of edges.

    Raises:
        UserError: The topology file is damaged, or max_edges leaves nothing to measure.
    """
    sizes = [edges for edges in EDGES if edges <= config.max_edges]
    if not sizes:
        raise UserError(f"max_edges is {config.max_edges}, expected at least {EDGES[0]}, the smallest graph")
    graph, growing = pubmed(config.data_root), {f"{edges}_edges": Graph(NODES, edges) for edges in sizes}
    print(f"PubMed's size: {graph}", flush=True)
    metrics = measure_all({"pubmed": graph}, config) | measure_all(growing, config)
    sizes = [edges for edges in sizes if any(name.startswith(f"{edges}_edges/") for name in metrics)]
    for name in CONTESTANTS:
        if f"{LARGE}_edges/{name}/ms" in metrics:
            metrics |= time_per_edge(name, Graph(NODES, SMALL), Graph(NODES, LARGE))
    metrics |= slopes(metrics, sizes)
    told, rounds = findings(metrics), [rounds_of(one, config) for one in (graph, *growing.values())]
    print(*told, sep="\n")
    shown = {"pubmed": f"{graph.edges} (PubMed)"} | {f"{edges}_edges": str(edges) for edges in sizes}
    return Outcome(
        metrics=metrics,
        rows=rows_by_size(metrics, "edges", shown, CONTESTANTS, digits=1),
        name="graph-scaling",
        title="Graph attention against the size of the graph",
        reference="GATConv's",
        clock=" of the two layers",
        definitions=SLOPES,
        always=(),
        more=" --data-root DIR",
        text=f"""The two attention layers of a GAT with PubMed's widths (64-wide dense input, 8 heads of 8, then 8
averaged heads of 3), forward and backward. WC: Weibull posterior, contextual Gamma prior, KL included. Soft: the same
layers, deterministic. GATConv: PyG's layers, the reference of the ratios.

PubMed's size: {graph}.
The other graphs are random, with {NODES} nodes. Inputs and initial weights are random everywhere.
Edges are counted without the self loops that every layer adds; our edge list is built once, ahead of the timing.""",
        figure=growth_figure(metrics, "edges", sizes, STYLES, slopes={1: "--"}, start=max(sizes) / 10),
        caption="Time and peak memory against the number of edges",
        notes=f"""{" ".join(told)}

Times are medians of {max(rounds)} interleaved rounds ({min(rounds)} on the largest graphs), ratios medians over rounds.
Memory is what the peak of the process exceeds its size before the first forward by, each in a fresh process. It
includes the code that torch loads at its first call, and free blocks of up to 32 MB that glibc keeps.""",
    )


def findings(metrics: Mapping[str, float]) -> list[str]:
    """What the numbers say about WC, one sentence a line."""
    ratio, peak = metrics["pubmed/WC/ratio"], metrics["pubmed/WC/peak_mb"]
    time_met, memory_met = ("" if met else ": NOT MET" for met in (ratio <= MAX_RATIO, peak <= MAX_MB))
    lines = [
        f"WC at PubMed's size: {ratio:.2f} times GATConv's time (at most {MAX_RATIO} expected{time_met}), "
        f"{peak:.0f} MB (at most {MAX_MB} MB expected{memory_met})."
    ]
    growing = [
        f"{name} {metrics[f'{name}/slope_ms']:.2f} and {metrics[f'{name}/slope_peak_mb']:.2f}"
        for name in CONTESTANTS
        if math.isfinite(metrics[f"{name}/slope_ms"])
    ]
    if growing:
        lines.append(f"Slopes of log time and log memory against log edges, upper decade: {', '.join(growing)}.")
    per_edge = [f"{name} {with_spread(metrics, key)}" for name in CONTESTANTS if (key := f"{name}/per_edge") in metrics]
    if per_edge:
        lines.append(f"Time per edge on {LARGE} edges over that on {SMALL}, taking turns: {', '.join(per_edge)}.")
    return lines
