"""All benchmarks, or one by name: ``python -m experiments.benchmarks [--name graph_attention]``."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("__main__", "BenchmarkConfig")

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.benchmarks import alignment_schemes, blocked_attention, enumeration, graph_scaling, self_attention
from experiments.benchmarks.config import BenchmarkConfig, Name
from experiments.benchmarks.measuring import Timing, interleave, progress, threads_text
from experiments.files import UserError, read_json, write_text
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, hold
from experiments.harness.results import write_environment
from experiments.report.columns import Row
from experiments.report.report import Part, Report
from experiments.report.results import source_of, write_results
from experiments.report.statistics import Estimate
from experiments.report.tables import as_table

SCRIPT = "experiments.benchmarks"
RATIOS = Path(__file__).with_name("ratios.json")
INTRODUCTION = (
    "Times are medians over interleaved rounds, ratios medians of the ratio to the reference in the same round: the "
    "first row, or the last row before whose ratio is 1."
)
NO_GPU = "\n\nNo GPU was at hand; `python -m experiments.benchmarks.fused_attention` times the kernels on one."
WORSE = 1.2  # a ratio that has grown by more than this factor is reported
Timings = dict[str, Timing]
Ratios = dict[str, dict[str, Any]]  # by benchmark: "torch", its version, and "ratios" by contestant


@dataclass(frozen=True)
class Benchmark:
    """Groups of contestants, each group with its reference first; rounds and warm-up; the text for the page.

    With all defaults the suite takes minutes, not hours.
    """

    groups: Callable[[], Iterable[Mapping[str, Callable[[], object]]]]
    rounds: int
    warm_up: int
    text: str

    def run(self, rounds: int | None) -> Timings:
        """Time the contestants of all groups."""
        found: Timings = {}
        for group in self.groups():
            found |= interleave(group, rounds=rounds or self.rounds, warm_up=self.warm_up)
        return found


def one_group(
    make_step: Callable[..., Callable[[], object]], contestants: Sequence[str], size: object
) -> list[dict[str, Callable[[], object]]]:
    """Contestants at one size."""
    return [{name: make_step(name, size) for name in contestants}]


BENCHMARKS: dict[Name, Benchmark] = {
    "graph_attention": Benchmark(
        graph_scaling.at_cora_size,
        50,
        5,
        "Forward and backward of the two attention layers of a GAT on a random graph of Cora's size, and whole "
        "training steps, to PyG's GATConv; the same layers with the scores of GATv2, to PyG's GATv2Conv.",
    ),
    "self_attention": Benchmark(
        partial(one_group, self_attention.make_step, self_attention.CONTESTANTS, self_attention.Sizes()),
        30,
        5,
        "Training steps of a two-layer transformer classifier: batch 32, 64 positions, width 128, 4 heads; to softmax "
        "attention written by hand.",
    ),
    "normalizers": Benchmark(
        self_attention.normalizers,
        10,
        2,
        "Training steps of one self-attention layer, batch 4, width 256, 4 heads; to softmax of the same length n and "
        "posterior.",
    ),
    "posterior_samples": Benchmark(
        partial(alignment_schemes.posterior_samples, enumeration.Sizes()),
        5,
        1,
        "Posterior samples of the alignment of 16 sentences of 25 words; to one deterministic pass of the model.",
    ),
    "enumeration": Benchmark(
        partial(one_group, enumeration.make_step, enumeration.CONTESTANTS, enumeration.Sizes()),
        5,
        1,
        "Forward and backward of the exact evidence of 16 sentences of 25 words, 25 alignments a word, 10000 tokens; "
        "to logsumexp written by hand.",
    ),
    "blocked_attention": Benchmark(
        partial(one_group, blocked_attention.make_step, blocked_attention.CONTESTANTS, 2048),
        7,
        1,
        "Forward and backward of one attention layer with its KL, 2 heads of width 32, 2048 positions; to torch's "
        "softmax attention.",
    ),
}


@exclusive
def run(config: BenchmarkConfig) -> None:
    """Run the benchmarks, print their tables and what got worse, and write benchmarks.json."""
    if config.results is not None and config.name is not None:
        raise UserError(f"name is {config.name} and results is set, but the page shows all; leave out one of the two")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("device is cuda, but torch.cuda.is_available() is False; leave --device out")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    gpus = ["cuda"] if torch.cuda.is_available() else []
    for device in map(torch.device, ["cpu", *gpus] if config.device == "auto" else [config.device]):
        hold(config.out / device.type)
        _run_on(device, config)


def _run_on(device: torch.device, config: BenchmarkConfig) -> None:
    results: dict[Name, Timings] = {}
    for name in progress([name for name in BENCHMARKS if config.name in (None, name)], "benchmark"):
        with nullcontext() if device.type == "cpu" else device:  # a device in charge takes time at every call of torch
            results[name] = BENCHMARKS[name].run(config.rounds)
        tqdm.write(f"{as_table(_rows(results[name], head=name))}\n")
    folder = config.out / device.type
    environment = write_environment(folder, device, script=SCRIPT)
    rounds = {name: config.rounds or BENCHMARKS[name].rounds for name in results}
    numbers = {name: {c: asdict(timing) for c, timing in timings.items()} for name, timings in results.items()}
    content = {"environment": environment, "rounds": rounds, "results": numbers}
    write_text(folder / "benchmarks.json", json.dumps(content, indent=2))
    print(folder / "benchmarks.json")
    # ratios are of the GPU, or of the CPU with the number of threads, which changes them
    kept_as = f"cpu, {threads_text()}" if device.type == "cpu" else environment["device"]
    measured: Ratios = {
        name: {"torch": environment["packages"]["torch"], "ratios": {c: round(t.ratio, 3) for c, t in timings.items()}}
        for name, timings in results.items()
    }
    committed: dict[str, Ratios] = read_json(RATIOS, "restore it from git")
    print(*compare(committed, kept_as, measured), sep="\n")
    if config.update:
        content = committed | {kept_as: committed.get(kept_as, {}) | measured}
        write_text(RATIOS, f"{json.dumps(content, indent=2, sort_keys=True)}\n")
        print(f"{RATIOS} updated")
    if config.results is not None:
        threads = f"-{environment['threads']}-threads" if config.threads is not None else ""
        study = f"benchmarks{threads}" if device.type == "cpu" else "benchmarks-gpu"
        line = command_line(SCRIPT, BenchmarkConfig(rounds=config.rounds, threads=config.threads))
        parts = [Part(text=INTRODUCTION + ("" if torch.cuda.is_available() else NO_GPU))]
        for name, timings in results.items():
            parts.append(Part(name, f"{BENCHMARKS[name].text} {rounds[name]} rounds.", rows=_rows(timings)))
        report = Report("Benchmarks", study, parts)
        print(write_results(config.results, report, source_of([folder], line, threads_text())))


def compare(committed: Mapping[str, Ratios], device: str, measured: Ratios) -> list[str]:
    """What got worse by more than 20 %, what is new and what was measured otherwise, one finding a line."""
    if device not in committed:
        return [f"ratios.json has no ratios on {device}; --update writes those of this run"]
    lines, any_worse = [], False
    for name, now in measured.items():
        before = committed[device].get(name)
        if before is None:
            lines.append(f"{name}: new, not in ratios.json")
            continue
        lines += [f"{name}: {new} is new" for new in now["ratios"] if new not in before["ratios"]]
        for contestant, ratio in now["ratios"].items():
            was = before["ratios"].get(contestant, math.inf)
            if ratio > WORSE * was:
                any_worse = True
                change = f"was {was:.2f} ({100 * (ratio / was - 1):+.0f} %)"
                lines.append(f"{name}: {contestant} takes {ratio:.2f} times the reference, {change}")
        if now["torch"] != before["torch"]:
            lines.append(f"{name}: ratios.json is of torch {before['torch']}, this run of {now['torch']}")
    return lines if any_worse else [*lines, "no ratio is more than 20 % worse than ratios.json"]


def _rows(timings: Timings, *, head: str = "contestant") -> list[Row]:
    return [
        {
            head: contestant,
            "ratio": Estimate(timing.ratio),
            "10-90 % of the ratio": f"{timing.ratio_low:.2f} - {timing.ratio_high:.2f}",
            "median ms": Estimate(timing.median),
        }
        for contestant, timing in timings.items()
    ]
