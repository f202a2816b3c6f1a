"""The benchmarks that ``python -m experiments.benchmarks`` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from experiments.benchmarks import (
    blocked_attention,
    enumeration,
    graph_attention,
    normalizers,
    posterior_samples,
    self_attention,
)
from experiments.benchmarks.config import Name
from experiments.benchmarks.timing import Timing, interleave

__all__ = ["BENCHMARKS", "SOURCES", "Benchmark"]

SOURCES = 25  # source positions of the enumerated alignments


@dataclass(frozen=True)
class Benchmark:
    """A function of ``rounds`` that times its contestants, the reference first; its default; the text for the page.

    With all defaults the suite takes minutes, not hours.
    """

    run: Callable[..., dict[str, Timing]]
    rounds: int
    text: str


def _enumeration(*, rounds: int) -> dict[str, Timing]:
    sizes = enumeration.Sizes(SOURCES)
    return interleave(
        {name: enumeration.make_step(name, sizes) for name in enumeration.CONTESTANTS}, rounds=rounds, warm_up=1
    )


BENCHMARKS: dict[Name, Benchmark] = {
    "graph_attention": Benchmark(
        graph_attention.run,
        50,
        "Forward and backward of the two attention layers of a GAT on a random graph of Cora's size, and whole "
        "training steps, to PyG's GATConv; the same layers with the scores of GATv2, to PyG's GATv2Conv.",
    ),
    "self_attention": Benchmark(
        self_attention.run,
        30,
        "Training steps of a two-layer transformer classifier: batch 32, 64 positions, width 128, 4 heads; to softmax "
        "attention written by hand.",
    ),
    "normalizers": Benchmark(
        normalizers.run,
        10,
        "Training steps of one self-attention layer, batch 4, width 256, 4 heads; to softmax of the same length n and "
        "posterior.",
    ),
    "posterior_samples": Benchmark(
        posterior_samples.run,
        5,
        "Posterior samples of the alignment of 16 sentences of 25 words; to one deterministic pass of the model.",
    ),
    "enumeration": Benchmark(
        _enumeration,
        5,
        f"Forward and backward of the exact evidence of 16 sentences of 25 words, {SOURCES} alignments a word, 10000 "
        f"tokens; to logsumexp written by hand.",
    ),
    "blocked_attention": Benchmark(
        blocked_attention.compare,
        7,
        "Forward and backward of one attention layer with its KL, 2 heads of width 32, 2048 positions; to torch's "
        "softmax attention.",
    ),
}
