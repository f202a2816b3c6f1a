"""All benchmarks, or one by name: ``python -m experiments.benchmarks [--name graph_attention]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from jsonargparse.typing import PositiveInt

from experiments.benchmarks import graph_attention, normalizers
from experiments.benchmarks.timing import Timing
from experiments.cli import run_script
from experiments.results import as_table, write_atomic, write_environment

BENCHMARKS: dict[str, Callable[..., dict[str, Timing]]] = {
    "graph_attention": graph_attention.run,
    "normalizers": normalizers.run,
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Time things side by side in one process; ratios are to the contestant with ratio 1 above.

    Args:
        name: One benchmark; all when omitted.
        rounds: Rounds that count.
        threads: Threads of torch; its own choice when omitted.
        out: Folder for benchmarks.json.
    """

    name: Literal["graph_attention", "normalizers"] | None = None
    rounds: PositiveInt = 50  # type: ignore[valid-type]
    threads: PositiveInt | None = None  # type: ignore[valid-type]
    out: Path = Path("runs", "benchmarks")


def run(config: BenchmarkConfig) -> None:
    """Run the benchmarks, print their tables and write benchmarks.json."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    results = {}
    for name in BENCHMARKS if config.name is None else [config.name]:
        timings = BENCHMARKS[name](rounds=config.rounds)
        results[name] = {contestant: asdict(timing) for contestant, timing in timings.items()}
        rows = [
            {
                name: contestant,
                "median ms": f"{timing.median:.2f}",
                "10-90 %": f"{timing.low:.2f} - {timing.high:.2f}",
                "ratio": f"{timing.ratio:.2f}",
            }
            for contestant, timing in timings.items()
        ]
        print(as_table(rows), end="\n\n")
    environment = write_environment(config.out, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    content = {"environment": environment, "rounds": config.rounds, "results": results}
    path = config.out / "benchmarks.json"
    write_atomic(path, lambda file: file.write(json.dumps(content, indent=2).encode()))
    print(path)


if __name__ == "__main__":
    sys.exit(run_script(BenchmarkConfig, run, name="experiments.benchmarks"))
