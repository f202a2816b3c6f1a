"""Options of the scripts on node classification."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.names import GraphName
from experiments.options import Dropout, StudyOptions, TrainingOptions
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import WEIGHTS, SchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class GraphConfig(TrainingOptions, SchemeOptions):
    """Train a graph attention network and evaluate its best epoch on the test nodes.

    Args:
        dataset: The graph.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        num_samples: Samples of a prediction.
        normalizer: What makes weights of positive numbers: a softmax over the neighbors; doubly_normalized, first over
            the nodes that attend to a neighbor; hybrid, a trained mixture of both.
        graph: Your own graph instead of a data set: a numpy archive with the keys of
            experiments.data.graphs.load.
        architecture: gat, as first published; residual_gat, with skip connections, layer norm and a network after
            each attention; gat_sep, the same with a node's own features beside those it attends to (and no self loop).
        scores: Of graph attention as first published, or of GATv2, which can rank neighbors by who attends.
        layers: Number of attention layers.
        value_dropout: In the architecture gat, drop the features that are aggregated too, as the original code does
            and PyG's layer does not; the residual architectures do not drop them.
        monitor: What decides on the kept epoch: both needs the best of metric and loss, as in the first GAT; metric
            looks at the accuracy (ROC AUC where the graph asks for it) alone, as Platonov et al. do.
        kl_weight: Weight of the KL, in the ELBO summed over labeled nodes.
        kl_scale: What the weight multiplies: edge, the mean KL of an attention weight, times the number of labeled
            nodes; total, the KL summed over edges, heads and layers, which drowns few labels among many edges.
        hidden: Width of a hidden head.
        heads: Number of hidden heads.
        dropout: In the architecture gat, dropout of the inputs of both layers and of the attention weights; in the
            residual ones, behind the input layer and inside the network after each attention.
        weight_decay: L2 penalty on every parameter.
        split_seed: Seed of the split of digits, or number of the split of graphs that have several.
        labels_per_class: Training labels kept in each class, or all of a class that has fewer, drawn by the seed; all
            when omitted.
        feature_noise: Fraction of the non-zero features that move to a random place in their row, drawn by the seed.
        edge_noise: Random edges added, as a fraction of the edges there are, drawn by the seed.
    """

    dataset: GraphName = "digits"
    guide: WeightsSchemeName = "weibull"
    normalizer: NormalizerName = "softmax"
    graph: Path | None = None
    architecture: Literal["gat", "residual_gat", "gat_sep"] = "gat"
    scores: Literal["gat", "gatv2"] = "gat"
    layers: PositiveInt = 2
    value_dropout: bool = True
    monitor: Literal["both", "metric"] = "both"
    kl_scale: Literal["total", "edge"] = "edge"
    kl_weight: NonNegativeFloat = 0.1
    hidden: PositiveInt = 8
    heads: PositiveInt = 8
    dropout: Dropout = 0.6
    learning_rate: PositiveFloat = 0.005
    weight_decay: NonNegativeFloat = 5e-4
    max_epochs: PositiveInt = 1000
    patience: PositiveInt = 100
    num_samples: PositiveInt = 50
    split_seed: NonNegativeInt = 0
    labels_per_class: PositiveInt | None = None
    feature_noise: ClosedUnitInterval = 0.0
    edge_noise: NonNegativeFloat = 0.0

    USED_BY: ClassVar[UsedBy] = {
        "kl_scale": {"guide": WEIGHTS, "objective": ("elbo",)},
        "value_dropout": {"architecture": ("gat",)},
    }
    PAPER_SIZES: ClassVar[Sequence[str]] = ("cora", "citeseer", "pubmed")


COMMANDS = {
    "train": Command(GraphConfig, "experiments.graph.task:train"),
    "table": Command(StudyOptions, "experiments.graph.studies:table", training=GraphConfig),
    "search": Command(StudyOptions, "experiments.graph.studies:search", training=GraphConfig),
}
