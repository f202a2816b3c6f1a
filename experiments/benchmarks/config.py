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
    """Time things side by side in one process, and say what takes longer than when it was published.

    Args:
        name: One benchmark; all when omitted, which takes half an hour.
        rounds: Rounds that count; each benchmark's own number when omitted.
        threads: Threads of torch; its own choice when omitted.
        out: Folder for the numbers, a file for each benchmark.
        results: Folder for the published numbers; none when omitted.
    """

    name: Name | None = None
    rounds: PositiveInt | None = None
    threads: PositiveInt | None = None
    out: Path = Path("runs", "benchmarks")
    results: Path | None = None
