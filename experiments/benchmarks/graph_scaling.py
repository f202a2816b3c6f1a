"""Time and memory of graph attention at PubMed's size and against the number of edges.

python -m experiments.benchmarks.graph_scaling --data-root DIR
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    sys.exit(
        run_script(
            "experiments.benchmarks.config:ScalingConfig",
            "experiments.benchmarks.graph_scaling:run",
            name="experiments.benchmarks.graph_scaling",
        )
    )

from collections.abc import Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from experiments.benchmarks import graph_scaling_report as report
from experiments.benchmarks.config import EDGES, ScalingConfig
from experiments.benchmarks.graph_sizes import (
    CONTESTANTS,
    LARGE,
    SMALL,
    Graph,
    Measurement,
    growth,
    measure,
    pubmed,
    time_per_edge,
)
from experiments.benchmarks.timing import threads_text
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_results
from experiments.harness.results import write_environment, write_metrics
from experiments.reporting.figures import save
from experiments.reporting.page import RESULTS, hardware, update_section
from experiments.reporting.tables import as_table

__all__ = ["ScalingConfig", "run"]

SCRIPT = "experiments.benchmarks.graph_scaling"
NODES = 20_000
QUANTITIES = {
    "ms": "median time of forward and backward of the two layers in milliseconds",
    "ratio": "that time divided by GATConv's in the same round, median over rounds",
    "peak_mb": "memory at the peak of forward and backward beyond that before the first one, in MB (10^6 bytes)",
}
SLOPES = {
    "slope_ms": "slope of log time against log edges, over graphs with at least a tenth of the most edges",
    "slope_peak_mb": "slope of log peak memory against log edges, over graphs with at least a tenth of the most edges",
    "per_edge": f"time divided by edges, on {LARGE} edges over {SMALL} in the same round, median over rounds",
    "per_edge_low": "10 % quantile of that",
    "per_edge_high": "90 % quantile of that",
}


@exclusive
def run(config: ScalingConfig) -> dict[str, float]:
    """Measure, print the table, write metrics, picture and section; the metrics.

    Raises:
        UserError: The topology file is damaged, a size or limit leaves nothing to measure, or the folder
            holds something else.
    """
    page = config.results or RESULTS
    sizes = [edges for edges in EDGES if edges <= config.max_edges]
    if not sizes:
        raise UserError(f"max_edges is {config.max_edges}, expected at least {EDGES[0]}, the smallest graph")
    open_results(config.out, SCRIPT)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    graph = pubmed(config.data_root)
    print(f"PubMed's size: {report.topology(graph)}", flush=True)
    (at_pubmed,) = _measure_all([graph], config)
    growing = _measure_all([Graph(NODES, edges) for edges in sizes], config)
    metrics = _metrics(at_pubmed, growing) | _per_edge(growing)
    definitions = {name: (QUANTITIES | SLOPES)[name.rpartition("/")[2]] for name in metrics}
    write_environment(config.out, torch.device("cpu"), script=SCRIPT)
    write_metrics(config.out, metrics, definitions)
    print(as_table(report.rows([at_pubmed, *growing])), *report.findings(metrics), sep="\n")
    picture = Path("pictures", "graph_scaling.png")
    for path in (config.out / picture.name, page.parent / picture):
        save(report.figure(at_pubmed, growing), path)
    machine = f"{hardware([config.out])}, {threads_text()}"
    command = command_line(SCRIPT, config)
    section = report.section(at_pubmed, growing, metrics, command=command, picture=picture, machine=machine)
    update_section(page, "graph-scaling", section)
    print(config.out / picture.name, page, sep="\n")
    return metrics


def _measure_all(graphs: Sequence[Graph], config: ScalingConfig) -> list[Measurement]:
    """Measure graphs of growing size, each contestant until it would need too much memory."""
    done: list[Measurement] = []
    fitting = list(CONTESTANTS)
    for graph in tqdm(graphs, unit="graph", disable=not sys.stderr.isatty(), leave=False):
        if done:
            times_larger = graph.edges / done[-1].graph.edges
            fitting = [name for name in fitting if done[-1].peaks[name] * times_larger <= 1e3 * config.max_memory]
        if fitting:
            rounds = min(config.rounds, max(5, 5_000_000 // graph.edges))
            done.append(measure(graph, fitting, rounds=rounds))
    return done


def _per_edge(growing: Sequence[Measurement]) -> dict[str, float]:
    """What an edge of a large graph takes beside one of a small graph, for layers that were measured on both."""
    measured = [found for found in growing if found.graph.edges in (SMALL, LARGE)]
    if len(measured) < 2:
        return {}
    small, large = measured
    names = [name for name in CONTESTANTS if name in large.times]
    found = {name: time_per_edge(name, small.graph, large.graph) for name in names}
    return {f"{name}/{key}": value for name in names for key, value in found[name].items()}


def _metrics(at_pubmed: Measurement, growing: Sequence[Measurement]) -> dict[str, float]:
    """Numbers by name, such as ``pubmed/WC/ms``."""
    named = {"pubmed": at_pubmed} | {f"{found.graph.edges}_edges": found for found in growing}
    metrics = {
        f"{size}/{contestant}/{quantity}": value
        for size, found in named.items()
        for contestant in found.times
        for quantity, value in found.numbers(contestant).items()
    }
    upper = [found for found in growing if 10 * found.graph.edges >= growing[-1].graph.edges]
    for contestant in CONTESTANTS:
        measured = [found for found in upper if contestant in found.times]
        edges = [found.graph.edges for found in measured]
        metrics[f"{contestant}/slope_ms"] = growth(edges, [found.times[contestant].median for found in measured])
        metrics[f"{contestant}/slope_peak_mb"] = growth(edges, [found.peaks[contestant] for found in measured])
    return metrics
