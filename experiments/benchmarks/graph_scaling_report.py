"""Table, picture and section of RESULTS.md of the benchmark graph_scaling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.benchmarks.graph_sizes import CONTESTANTS, LARGE, SMALL, Graph, Measurement
from experiments.benchmarks.timing import with_spread
from experiments.reporting.tables import markdown_table

__all__ = ["figure", "findings", "rows", "section", "topology"]

MAX_RATIO, MAX_MB = 1.6, 2000  # what is promised of WC at PubMed's size
STYLE = {"GATConv": ("0.45", "s", "GATConv (PyG)"), "Soft": ("#d1495b", "^", "Soft"), "WC": ("#1b6ca8", "o", "WC")}
HOLLOW: dict[str, Any] = {"markersize": 10, "markerfacecolor": "none", "linestyle": "none"}


def topology(graph: Graph) -> str:
    """Which graph stands for PubMed's."""
    kind = "random, as there is no planetoid/pubmed_topology.npz" if graph.file is None else "PubMed's own topology"
    return f"{graph.nodes} nodes, {graph.edges} directed edges ({kind})"


def rows(measurements: Sequence[Measurement]) -> list[dict[str, str]]:
    """One row a graph, the first of them PubMed's; "-" where layers were left out."""
    table = []
    for i, found in enumerate(measurements):
        row = {"edges": f"{found.graph.edges}{'' if i else ' (PubMed)'}"}
        for quantity, unit, digits in (("ms", "ms", 1), ("ratio", "ratio", 2), ("peak_mb", "MB", 0)):
            for name in CONTESTANTS:
                value = found.numbers(name).get(quantity)
                if (name, quantity) != ("GATConv", "ratio"):
                    row[f"{name} {unit}"] = "-" if value is None else f"{value:.{digits}f}"
        table.append(row)
    return table


def findings(metrics: Mapping[str, float]) -> list[str]:
    """What the numbers say about WC, one sentence a line."""
    ratio, peak = metrics["pubmed/WC/ratio"], metrics["pubmed/WC/peak_mb"]
    lines = [
        f"WC at PubMed's size: {ratio:.2f} times GATConv's time ({_verdict(ratio, MAX_RATIO, '')}), "
        f"{peak:.0f} MB ({_verdict(peak, MAX_MB, ' MB')})."
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


def _verdict(value: float, bar: float, unit: str) -> str:
    return f"at most {bar}{unit} expected{'' if value <= bar else ': NOT MET'}"


def figure(at_pubmed: Measurement, growing: Sequence[Measurement]) -> Figure:
    """Time and peak memory against edges on logarithmic axes, with a line of slope one; PubMed's size hollow."""
    picture = Figure(figsize=(9, 3.9), layout="constrained")
    time, memory = picture.subplots(1, 2)
    for axis, quantity in ((time, "ms"), (memory, "peak_mb")):
        for name in CONTESTANTS:
            colour, marker, label = STYLE[name]
            points = [(f.graph.edges, f.numbers(name)[quantity]) for f in growing if name in f.times]
            axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, label=label)
            axis.plot(at_pubmed.graph.edges, at_pubmed.numbers(name)[quantity], color=colour, marker=marker, **HOLLOW)
        _guide(axis, growing, quantity)
        axis.plot([], [], color="0.3", marker="o", label="PubMed's size", **HOLLOW)
        axis.set(xscale="log", yscale="log", xlabel="directed edges")
        axis.grid(which="major", color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
    time.set(ylabel="ms", title="Forward and backward, two layers")
    memory.set(ylabel="MB", title="Peak memory")
    time.legend(frameon=False, fontsize=9)
    return picture


def _guide(axis: Axes, growing: Sequence[Measurement], quantity: str) -> None:
    """A dashed line of slope one below the curves, over the decade whose slopes are fitted."""
    last = growing[-1]
    lowest = min(last.numbers(name)[quantity] for name in last.times)
    ends = (last.graph.edges / 10, last.graph.edges)
    axis.plot(ends, [0.6 * lowest * edges / ends[1] for edges in ends], color="0.3", linestyle="--", label="slope 1")


def section(
    at_pubmed: Measurement,
    growing: Sequence[Measurement],
    metrics: Mapping[str, float],
    *,
    command: str,
    picture: Path,
    machine: str,
) -> str:
    """Markdown of the section."""
    rounds = [found.rounds for found in (at_pubmed, *growing)]
    return f"""## Graph attention against the size of the graph

`{command} --data-root DIR`, on {machine}.

The two attention layers of a GAT with PubMed's widths (64-wide dense input, 8 heads of 8, then 8 averaged heads of 3),
forward and backward. WC: Weibull posterior, contextual Gamma prior, KL included. Soft: the same layers, deterministic.
GATConv: PyG's layers, the reference of the ratios.

PubMed's size: {topology(at_pubmed.graph)}.
The other graphs are random, with {growing[0].graph.nodes} nodes. Inputs and initial weights are random everywhere.
Edges are counted without the self loops that every layer adds; our edge list is built once, ahead of the timing.

{markdown_table(rows([at_pubmed, *growing]))}

{" ".join(findings(metrics))}

![Time and peak memory against the number of edges]({picture.as_posix()})

Times are medians of {max(rounds)} interleaved rounds ({min(rounds)} on the largest graphs), ratios medians over rounds.
Memory is what the peak of the process exceeds its size before the first forward by, each in a fresh process. It
includes the code that torch loads at its first call, and free blocks of up to 32 MB that glibc keeps.
"""
