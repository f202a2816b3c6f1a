"""All benchmarks, or one by name: ``python -m experiments.benchmarks [--name graph_attention]``."""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks", "experiments.benchmarks.config:BenchmarkConfig", "experiments.benchmarks.__main__:run"
    )

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from tqdm import tqdm

from experiments.benchmarks.config import BenchmarkConfig, Name
from experiments.benchmarks.ratios import RATIOS, Measured, compare, device_name, ratios_of, read_ratios, write_ratios
from experiments.benchmarks.report import progress
from experiments.benchmarks.suite import BENCHMARKS
from experiments.benchmarks.timing import Timing, threads_text
from experiments.files import UserError, write_atomic
from experiments.harness.folder import exclusive, open_results
from experiments.harness.results import write_environment
from experiments.reporting.page import hardware, update_section
from experiments.reporting.tables import as_table, markdown_table

SCRIPT = "experiments.benchmarks"
Results = dict[Name, dict[str, Timing]]


@exclusive
def run(config: BenchmarkConfig) -> None:
    """Run the benchmarks, print their tables and what got worse, and write benchmarks.json."""
    if config.results is not None and config.name is not None:
        raise UserError(f"name is {config.name} and results is set, but the page shows all; leave out one of the two")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, but torch.cuda.is_available() is False; leave --device out")
    read_ratios(RATIOS)  # a damaged file is better known before the minutes that follow
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    gpus = ["cuda"] if torch.cuda.is_available() else []
    for device in map(torch.device, ["cpu", *gpus] if config.device == "auto" else [config.device]):
        open_results(config.out / device.type, SCRIPT)
        _run_on(device, config)


def _run_on(device: torch.device, config: BenchmarkConfig) -> None:
    results: Results = {}
    names = [name for name in BENCHMARKS if config.name in (None, name)]
    for name in progress(names, "benchmark"):
        benchmark = BENCHMARKS[name]
        with nullcontext() if device.type == "cpu" else device:  # a device in charge takes time at every call of torch
            results[name] = benchmark.run(rounds=config.rounds or benchmark.rounds)
        tqdm.write(f"{as_table(_rows(results[name], head=name))}\n")
    environment = write_environment(config.out / device.type, device, script=SCRIPT)
    path = config.out / device.type / "benchmarks.json"
    content = {
        "environment": environment,
        "rounds": {name: config.rounds or BENCHMARKS[name].rounds for name in results},
        "results": {name: {c: asdict(timing) for c, timing in timings.items()} for name, timings in results.items()},
    }
    write_atomic(path, lambda file: file.write(json.dumps(content, indent=2).encode()))
    print(path)
    _guard(results, environment, update=config.update)
    if config.results is not None:
        threads = f"-{environment['threads']}-threads" if config.threads is not None else ""
        section = f"benchmarks{threads}" if device.type == "cpu" else "benchmarks-gpu"
        update_section(config.results, section, _section(results, config, hardware([path.parent])))


def _guard(results: Results, environment: Mapping[str, Any], *, update: bool) -> None:
    """Print what got worse; with ``update``, then let this be what later runs are compared with."""
    device, version = device_name(environment["device"], environment["threads"]), environment["packages"]["torch"]
    measured: dict[str, Measured] = {name: ratios_of(timings, torch=version) for name, timings in results.items()}
    print(*compare(read_ratios(RATIOS), device, measured), sep="\n")
    if update:
        write_ratios(RATIOS, device, measured)
        print(f"{RATIOS} updated")


def _rows(timings: Mapping[str, Timing], *, head: str = "contestant") -> list[dict[str, str]]:
    return [
        {
            head: contestant,
            "ratio": f"{timing.ratio:.2f}",
            "10-90 % of the ratio": f"{timing.ratio_low:.2f} - {timing.ratio_high:.2f}",
            "median ms": f"{timing.median:.2f}",
        }
        for contestant, timing in timings.items()
    ]


def _section(results: Results, config: BenchmarkConfig, machine: str) -> str:
    """Markdown of the section: a table for each benchmark."""
    options = {"rounds": config.rounds, "threads": config.threads}
    given = "".join(f" --{option} {value}" for option, value in options.items() if value is not None)
    parts = [
        f"## Benchmarks\n\n`python -m experiments.benchmarks{given}`, on {machine}, {threads_text()}."
        f"\n\nTimes are medians over interleaved rounds, ratios medians of the "
        f"ratio to the reference in the same round: the first row, or the last row before whose ratio is 1."
    ]
    if not torch.cuda.is_available():
        parts.append("No GPU was at hand; `python -m experiments.benchmarks.fused_attention` times the kernels on one.")
    for name, timings in results.items():
        rounds = config.rounds or BENCHMARKS[name].rounds
        parts.append(f"### {name}\n\n{BENCHMARKS[name].text} {rounds} rounds.\n\n{markdown_table(_rows(timings))}")
    return "\n\n".join(parts)
