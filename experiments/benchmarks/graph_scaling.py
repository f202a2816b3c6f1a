"""Time and memory of graph attention at PubMed's size and against the number of edges.

python -m experiments.benchmarks.graph_scaling --data-root DIR
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.graph_scaling",
        "experiments.benchmarks.config:ScalingConfig",
        "experiments.benchmarks.graph_scaling:run",
    )

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.benchmarks import graph_sizes, report
from experiments.benchmarks.config import EDGES, ScalingConfig
from experiments.benchmarks.graph_sizes import CONTESTANTS, LARGE, SMALL, Graph, Measurement
from experiments.benchmarks.memory import measure
from experiments.benchmarks.timing import with_spread
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive
from experiments.report.results import RESULTS

__all__ = ["findings", "rows", "run", "topology"]

SCRIPT = "experiments.benchmarks.graph_scaling"
NODES = 20_000
MAX_RATIO, MAX_MB = 1.6, 2000  # what is promised of WC at PubMed's size
STYLES = {"GATConv": ("0.45", "s"), "Soft": ("#d1495b", "^"), "WC": ("#1b6ca8", "o")}
HOLLOW: dict[str, Any] = {"markersize": 10, "markerfacecolor": "none", "linestyle": "none"}
QUANTITIES = report.quantities("GATConv's", clock=" of the two layers")
SLOPES = {
    "slope_ms": "slope of log time against log edges, over graphs with at least a tenth of the most edges",
    "slope_peak_mb": "slope of log peak memory against log edges, over graphs with at least a tenth of the most edges",
    "per_edge": f"time divided by edges, on {LARGE} edges over {SMALL} in the same round, median over rounds",
    "per_edge_low": "10 % quantile of that",
    "per_edge_high": "90 % quantile of that",
}


@exclusive
def run(config: ScalingConfig) -> dict[str, float]:
    """Measure, print the table, write metrics, picture and section; the metrics are returned.

    Raises:
        UserError: The topology file is damaged, or max_edges leaves nothing to measure.
    """
    sizes = [edges for edges in EDGES if edges <= config.max_edges]
    if not sizes:
        raise UserError(f"max_edges is {config.max_edges}, expected at least {EDGES[0]}, the smallest graph")
    report.open_folder(config.out, SCRIPT, config.threads)
    graph = graph_sizes.pubmed(config.data_root)
    print(f"PubMed's size: {topology(graph)}", flush=True)
    (at_pubmed,) = _measure_all([graph], config)
    growing = _measure_all([Graph(NODES, edges) for edges in sizes], config)
    metrics = _metrics(at_pubmed, growing) | _per_edge(growing)
    print(*findings(metrics), sep="\n")
    text, notes = _texts(at_pubmed, growing)
    report.publish(
        SCRIPT, metrics, QUANTITIES | SLOPES, rows(metrics, at_pubmed, growing),
        out=config.out, results=config.results or RESULTS, name="graph-scaling",
        title="Graph attention against the size of the graph", text=text,
        command=f"{command_line(SCRIPT, config)} --data-root DIR",
        figure=_figure(metrics, at_pubmed, growing), caption="Time and peak memory against the number of edges",
        notes=f"{' '.join(findings(metrics))}\n\n{notes}",
    )  # fmt: skip
    return metrics


def _measure_all(graphs: Sequence[Graph], config: ScalingConfig) -> list[Measurement]:
    """Measure graphs of growing size, each contestant until it would need too much memory."""
    done: list[Measurement] = []
    fitting = list(CONTESTANTS)
    for graph in report.progress(graphs, "graph"):
        if done:
            times_larger = graph.edges / done[-1].graph.edges
            fitting = [name for name in fitting if done[-1].peaks[name] * times_larger <= 1e3 * config.max_memory]
        if fitting:
            rounds = min(config.rounds, max(5, 5_000_000 // graph.edges))
            times, peaks = measure(graph_sizes.make_step, fitting, graph, rounds=rounds, warm_up=max(1, rounds // 10))
            done.append(Measurement(graph, rounds, times, peaks))
    return done


def _per_edge(growing: Sequence[Measurement]) -> dict[str, float]:
    """What an edge of a large graph takes beside one of a small graph, for layers that were measured on both."""
    measured = [found for found in growing if found.graph.edges in (SMALL, LARGE)]
    if len(measured) < 2:
        return {}
    small, large = measured
    names = [name for name in CONTESTANTS if name in large.times]
    found = {name: graph_sizes.time_per_edge(name, small.graph, large.graph) for name in names}
    return {f"{name}/{key}": value for name, numbers in found.items() for key, value in numbers.items()}


def _metrics(at_pubmed: Measurement, growing: Sequence[Measurement]) -> dict[str, float]:
    """Numbers by name, and how they grow over the upper decade of sizes."""
    metrics = at_pubmed.numbers("pubmed")
    for found in growing:
        metrics |= found.numbers(f"{found.graph.edges}_edges")
    upper = [found for found in growing if 10 * found.graph.edges >= growing[-1].graph.edges]
    for name in CONTESTANTS:
        measured = [found for found in upper if name in found.times]
        edges = [found.graph.edges for found in measured]
        metrics[f"{name}/slope_ms"] = graph_sizes.growth(edges, [found.times[name].median for found in measured])
        metrics[f"{name}/slope_peak_mb"] = graph_sizes.growth(edges, [found.peaks[name] for found in measured])
    return metrics


def topology(graph: Graph) -> str:
    """Which graph stands for PubMed's."""
    kind = "random, as there is no planetoid/pubmed_topology.npz" if graph.file is None else "PubMed's own topology"
    return f"{graph.nodes} nodes, {graph.edges} directed edges ({kind})"


def rows(metrics: Mapping[str, float], at_pubmed: Measurement, growing: Sequence[Measurement]) -> list[dict[str, str]]:
    """One row a graph, the first of them PubMed's; "-" where layers were left out."""
    sizes = {"pubmed": f"{at_pubmed.graph.edges} (PubMed)"}
    sizes |= {f"{found.graph.edges}_edges": str(found.graph.edges) for found in growing}
    return report.rows_by_size(metrics, "edges", sizes, CONTESTANTS, digits=1)


def findings(metrics: Mapping[str, float]) -> list[str]:
    """What the numbers say about WC, one sentence a line."""
    ratio, peak = metrics["pubmed/WC/ratio"], metrics["pubmed/WC/peak_mb"]
    time_met, memory_met = ("" if met else ": NOT MET" for met in (ratio <= MAX_RATIO, peak <= MAX_MB))
    lines = [
        f"WC at PubMed's size: {ratio:.2f} times GATConv's time (at most {MAX_RATIO} expected{time_met}), "
        f"{peak:.0f} MB (at most {MAX_MB} MB expected{memory_met})."
    ]
    slopes = [
        f"{name} {metrics[f'{name}/slope_ms']:.2f} and {metrics[f'{name}/slope_peak_mb']:.2f}"
        for name in CONTESTANTS
        if math.isfinite(metrics[f"{name}/slope_ms"])
    ]
    if slopes:
        lines.append(f"Slopes of log time and log memory against log edges, upper decade: {', '.join(slopes)}.")
    per_edge = [f"{name} {with_spread(metrics, key)}" for name in CONTESTANTS if (key := f"{name}/per_edge") in metrics]
    if per_edge:
        lines.append(f"Time per edge on {LARGE} edges over that on {SMALL}, taking turns: {', '.join(per_edge)}.")
    return lines


def _figure(metrics: Mapping[str, float], at_pubmed: Measurement, growing: Sequence[Measurement]) -> Figure:
    """Time and peak memory against edges, with a line of slope one over the upper decade; PubMed's size hollow."""
    edges = [found.graph.edges for found in growing]
    figure = report.growth_figure(metrics, "edges", edges, STYLES, slopes={1: "--"}, start=max(edges) / 10)
    for axis, quantity in zip(figure.axes, ("ms", "peak_mb"), strict=True):
        for name, (colour, marker) in STYLES.items():
            value = metrics[f"pubmed/{name}/{quantity}"]
            axis.plot(at_pubmed.graph.edges, value, color=colour, marker=marker, **HOLLOW)
        axis.plot([], [], color="0.3", marker="o", label="PubMed's size", **HOLLOW)
        axis.set_xlabel("directed edges")
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def _texts(at_pubmed: Measurement, growing: Sequence[Measurement]) -> tuple[str, str]:
    """What stands in the section ahead of the table, and at the end."""
    rounds = [found.rounds for found in (at_pubmed, *growing)]
    text = f"""The two attention layers of a GAT with PubMed's widths (64-wide dense input, 8 heads of 8, then 8
averaged heads of 3), forward and backward. WC: Weibull posterior, contextual Gamma prior, KL included. Soft: the same
layers, deterministic. GATConv: PyG's layers, the reference of the ratios.

PubMed's size: {topology(at_pubmed.graph)}.
The other graphs are random, with {growing[0].graph.nodes} nodes. Inputs and initial weights are random everywhere.
Edges are counted without the self loops that every layer adds; our edge list is built once, ahead of the timing."""
    notes = f"""\
Times are medians of {max(rounds)} interleaved rounds ({min(rounds)} on the largest graphs), ratios medians over rounds.
Memory is what the peak of the process exceeds its size before the first forward by, each in a fresh process. It
includes the code that torch loads at its first call, and free blocks of up to 32 MB that glibc keeps."""
    return text, notes
