"""All benchmarks: their tables, and the comparison with the published ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from experiments.benchmarks import layers, networks
from experiments.benchmarks.config import BenchmarkConfig, Name
from experiments.benchmarks.measuring import Benchmark
from experiments.cli import command_line
from experiments.folder import write_environment
from experiments.report.report import RESULTS, Part, Report, read_results, source_of, write_results
from experiments.report.statistics import Row
from experiments.report.terminal import wrapped

BENCHMARKS: dict[Name, Benchmark] = {
    "graph_attention": layers.GRAPHS,
    "self_attention": networks.CLASSIFIERS,
    "normalizers": layers.NORMALIZERS,
    "enumeration": networks.ENUMERATION,
    "alignment_schemes": networks.SCHEMES,
    "posterior_samples": networks.SAMPLING,
    "predictions": networks.PREDICTIONS,
    "evidence": networks.EVIDENCE,
    "blocked_attention": layers.BLOCKED,
    "mcan": networks.MCAN_STEPS,
    "transformer": networks.TRANSFORMER_STEPS,
}
WORSE = 1.2  # ratios that have grown by more than this factor are reported


def run(config: BenchmarkConfig) -> None:
    """Run the benchmarks, print their tables and the ratios that got worse, and write the numbers."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    for name, benchmark in BENCHMARKS.items():
        if config.name in (None, name):
            _run(name, benchmark, config)


def _run(name: Name, benchmark: Benchmark, config: BenchmarkConfig) -> None:
    rounds = config.rounds or benchmark.rounds
    text = f"{benchmark.text} Medians of {rounds} interleaved rounds, ratios to {benchmark.contestants[0]} in each of "
    text += "the time of the processor, that of all threads."
    if benchmark.memory:
        text += " MB: memory at the peak beyond that before the first step."
    rows = benchmark.measure(rounds)
    report = Report(benchmark.title, f"speed-{name}", [Part(text=text, rows=rows, labels=2)])
    write_environment(config.out, torch.device("cpu"))
    count = torch.get_num_threads()
    threads = f"{count} thread{'s' if count > 1 else ''}"
    asked = BenchmarkConfig(name=name, rounds=config.rounds, threads=config.threads)
    source = source_of([config.out], command_line("experiments.benchmarks", asked), threads)
    print(report.terminal(), write_results(config.results or config.out, report, source), sep="\n")
    published = RESULTS / f"{report.name}.json"
    if published.is_file():
        before, source_of_published = read_results(published)
        messages = worse(before.parts[0].rows, rows) or [f"no ratio is more than {WORSE - 1:.0%} worse"]
        print(*map(wrapped, messages), wrapped(f"than as published, by {source_of_published}"), sep="\n")


def worse(before: Sequence[Row], now: Sequence[Row]) -> list[str]:
    """Return a line for every ratio that has grown by more than 20 %."""
    ratios = {(row["size"], row["contestant"]): row["ratio"].mean for row in before}
    lines = []
    for row in now:
        was, ratio = ratios.get((row["size"], row["contestant"])), row["ratio"].mean
        if was is not None and ratio > WORSE * was:
            lines.append(f"{row['size']}, {row['contestant']}: {ratio:.2f} times the reference, was {was:.2f}")
    return lines
