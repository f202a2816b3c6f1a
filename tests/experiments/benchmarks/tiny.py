"""All benchmarks at tiny sizes."""

from dataclasses import replace

from experiments.benchmarks.alignments import Sizes
from experiments.benchmarks.blocked_attention import Sizes as Positions
from experiments.benchmarks.config import Name
from experiments.benchmarks.graph_attention import Graph
from experiments.benchmarks.measuring import Benchmark
from experiments.benchmarks.networks import Questions, Tokens
from experiments.benchmarks.self_attention import Sizes as Classifier
from experiments.benchmarks.suite import BENCHMARKS
from models.vqa import MCANSizes

WORDS = Sizes(3, targets=2, batch=2, width=4, vocabulary=6)
CLASSIFIER = Classifier(batch=2, length=3, width=8, heads=2)
SIZES = {
    "graph_attention": Graph(9, 20),
    "self_attention": CLASSIFIER,
    "normalizers": replace(CLASSIFIER, guide="Weibull"),
    "blocked_attention": Positions(64),
    "fused_attention": Positions(64, heads=2, width=8),
    "mcan": Questions(3, 5, 4, features=5, vocabulary=9, answers=4, network=MCANSizes(8, 8, 2, 1, 16, 8), dropout=0.0),
    "transformer": Tokens(layers=1, heads=2, width=8, hidden=8, vocabulary=20, dropout=0.0, batch=3, length=5),
}
TINY: dict[Name, Benchmark] = {
    name: replace(benchmark, sizes={"tiny": SIZES.get(name, WORDS)}) for name, benchmark in BENCHMARKS.items()
}
