"""Options of the benchmarks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveFloat, PositiveInt

from experiments.harness.options import Device, Precision

Name = Literal[
    "graph_attention", "self_attention", "normalizers", "posterior_samples", "enumeration", "blocked_attention"
]
EDGES = (20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000)
BENCH = Path("runs", "bench")


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """Time things side by side in one process; ratios are to the first row, or to the last row before with ratio 1.

    Args:
        name: One benchmark; all when omitted.
        rounds: Rounds that count; each benchmark's own number when omitted.
        threads: Threads of torch; its own choice when omitted.
        device: Where to compute; auto takes the CPU, and then a GPU where there is one.
        out: Folder for benchmarks.json and environment.json, in a folder for each device.
        update: Make these the committed ratios, experiments/benchmarks/ratios.json, that later runs are compared with.
        results: Folder for the published numbers; none when omitted.
    """

    name: Name | None = None
    rounds: PositiveInt | None = None
    threads: PositiveInt | None = None
    device: Device = "auto"
    out: Path = Path("runs", "benchmarks")
    update: bool = False
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """How a comparison is timed, and where it is written.

    Args:
        rounds: Rounds that count.
        threads: Threads of torch; its own choice when omitted.
        out: Folder for metrics.json, environment.json and the picture, where there is one.
        results: Folder for the published numbers and, in pictures/, the picture; none when omitted.
    """

    rounds: PositiveInt = 5
    threads: PositiveInt | None = None
    out: Path = BENCH
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class AlignmentSchemesConfig(MeasuringOptions):
    """Time and memory of training steps of a translation model by inference scheme.

    Args:
        sources: Numbers of source positions.
        precisions: Arithmetic of the steps; bf16-mixed is left out on a CPU without instructions for bfloat16.
        vocabulary: Number of tokens.
        top_k: Most keys of a sparse alignment.
    """

    sources: tuple[PositiveInt, ...] = (10, 25)
    precisions: tuple[Precision, ...] = ("32", "bf16-mixed")
    vocabulary: PositiveInt = 10_000
    top_k: PositiveInt = 3
    out: Path = BENCH / "alignment_schemes"


@dataclass(frozen=True, kw_only=True)
class BlockedConfig(MeasuringOptions):
    """Time and memory of one layer of Bayesian attention with its KL, forward and backward.

    Args:
        lengths: Numbers of positions.
        dense_up_to: The longest length at which the dense contestants take part.
    """

    lengths: tuple[PositiveInt, ...] = (1024, 2048, 4096, 8192)
    dense_up_to: PositiveInt = 8192
    out: Path = BENCH / "blocked_attention"


@dataclass(frozen=True, kw_only=True)
class EnumerationConfig(MeasuringOptions):
    """Time and memory of exact marginal likelihoods over alignments, forward and backward.

    Args:
        sources: Numbers of source positions, each of which is an alignment.
        vocabulary: Number of tokens.
    """

    sources: tuple[PositiveInt, ...] = (10, 25, 50)
    vocabulary: PositiveInt = 10_000
    out: Path = BENCH / "enumeration"


@dataclass(frozen=True, kw_only=True)
class FusedConfig(MeasuringOptions):
    """Time and memory of one layer of fused Bayesian attention with its KL, forward and backward, on a GPU.

    Args:
        lengths: Numbers of positions.
        width: Width of a head.
        dtype: Of queries, keys and values.
        heads: Number of heads.
        batch: Sequences at a time.
        causal: Let no position attend to later ones.
    """

    lengths: tuple[PositiveInt, ...] = (4096, 16384)
    width: PositiveInt = 64
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    heads: PositiveInt = 16
    batch: PositiveInt = 1
    causal: bool = False
    rounds: PositiveInt = 20
    out: Path = BENCH / "fused_attention"


@dataclass(frozen=True, kw_only=True)
class RingConfig:
    """Memory and traffic of blocked attention over a ring of devices, computed and not measured.

    Args:
        positions: Positions of the sequence.
        devices: Numbers of devices.
        heads: Number of heads.
        width: Width of a head.
        half: Whether queries, keys and values are in half precision, else in float32.
    """

    positions: PositiveInt = 2**20
    devices: tuple[PositiveInt, ...] = (8, 64)
    heads: PositiveInt = 16
    width: PositiveInt = 64
    half: bool = True


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(MeasuringOptions):
    """Time and memory of graph attention layers at PubMed's size, and against the number of edges.

    Args:
        data_root: Folder of the data sets, for planetoid/pubmed_topology.npz; $PYRO_ATTENTION_DATA, else
            ~/.cache/pyro_attention when omitted. Without that file a random graph of PubMed's size is measured.
        results: Folder for the published numbers and, in pictures/, the picture; experiments/results when omitted.
        max_edges: Edges of the largest random graph.
        max_memory: GB that one measurement may take; layers that would need more are left out.
        rounds: Rounds that count; large graphs get fewer.
    """

    data_root: Path | None = None
    out: Path = BENCH / "graph_scaling"
    results: Path | None = Path(__file__).parents[1] / "results"
    max_edges: PositiveInt = EDGES[-1]
    max_memory: PositiveFloat = 8.0
    rounds: PositiveInt = 30


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(MeasuringOptions):
    """Time and memory of training steps of a BERT of MiniLM's size, with its own attention and with Bayesian attention.

    Args:
        batch: Sequences at a time.
        length: Tokens of the longest one.
    """

    batch: PositiveInt = 32
    length: PositiveInt = 64
    out: Path = BENCH / "transformer"
    rounds: PositiveInt = 10


@dataclass(frozen=True, kw_only=True)
class MCANConfig(MeasuringOptions):
    """Time and memory of training steps of MCAN at its published sizes, with soft and with Bayesian attention.

    Args:
        batch: Questions at a time.
        words: Words of the longest one.
        regions: Regions of a photograph.
    """

    batch: PositiveInt = 16
    words: PositiveInt = 14
    regions: PositiveInt = 36
    out: Path = BENCH / "mcan"
    rounds: PositiveInt = 10
