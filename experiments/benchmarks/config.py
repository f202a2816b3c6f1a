"""Options of the benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

Name = Literal[
    "graph_attention", "self_attention", "normalizers", "enumeration", "alignment_schemes", "posterior_samples",
    "predictions", "evidence", "blocked_attention", "mcan", "transformer",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Time steps side by side in one process, and compare the ratios with the published ones.

    Args:
        name: Name of one benchmark; all run when omitted, which takes half an hour.
        rounds: Number of rounds that count; a default of each benchmark when omitted.
        threads: Number of threads of torch; torch's default when omitted.
        out: Folder for the numbers, with a file for each benchmark.
        results: Folder for the published numbers; none when omitted.
    """

    name: Name | None = None
    rounds: PositiveInt | None = None
    threads: PositiveInt | None = None
    out: Path = Path("runs", "benchmarks")
    results: Path | None = None
