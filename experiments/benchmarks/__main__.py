"""All benchmarks, or one by name: ``python -m experiments.benchmarks [--name graph_attention]``."""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks", "experiments.benchmarks.config:BenchmarkConfig", "experiments.benchmarks.__main__:run"
    )

import json
from collections.abc import Iterator, Mapping
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
from experiments.report.columns import Row
from experiments.report.report import Part, Report
from experiments.report.results import source_of, write_results
from experiments.report.statistics import Estimate
from experiments.report.tables import as_table

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
        study = f"benchmarks{threads}" if device.type == "cpu" else "benchmarks-gpu"
        source = source_of([path.parent], _command(config), threads_text())
        print(write_results(config.results, Report("Benchmarks", study, list(_parts(results, config))), source))


def _guard(results: Results, environment: Mapping[str, Any], *, update: bool) -> None:
    """Print what got worse; with ``update``, then let this be what later runs are compared with."""
    device, version = device_name(environment["device"], environment["threads"]), environment["packages"]["torch"]
    measured: dict[str, Measured] = {name: ratios_of(timings, torch=version) for name, timings in results.items()}
    print(*compare(read_ratios(RATIOS), device, measured), sep="\n")
    if update:
        write_ratios(RATIOS, device, measured)
        print(f"{RATIOS} updated")


def _rows(timings: Mapping[str, Timing], *, head: str = "contestant") -> list[Row]:
    return [
        {
            head: contestant,
            "ratio": Estimate(timing.ratio),
            "10-90 % of the ratio": f"{timing.ratio_low:.2f} - {timing.ratio_high:.2f}",
            "median ms": Estimate(timing.median),
        }
        for contestant, timing in timings.items()
    ]


def _command(config: BenchmarkConfig) -> str:
    options = {"rounds": config.rounds, "threads": config.threads}
    given = "".join(f" --{option} {value}" for option, value in options.items() if value is not None)
    return f"python -m experiments.benchmarks{given}"


def _parts(results: Results, config: BenchmarkConfig) -> Iterator[Part]:
    """A table for each benchmark."""
    gpu = "" if torch.cuda.is_available() else (
        "\n\nNo GPU was at hand; `python -m experiments.benchmarks.fused_attention` times the kernels on one."
    )  # fmt: skip
    yield Part(
        text="Times are medians over interleaved rounds, ratios medians of the ratio to the reference in the same "
        f"round: the first row, or the last row before whose ratio is 1.{gpu}"
    )
    for name, timings in results.items():
        rounds = config.rounds or BENCHMARKS[name].rounds
        yield Part(name, f"{BENCHMARKS[name].text} {rounds} rounds.", rows=_rows(timings))
