"""Options of the scripts on node classification."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.data.dataset_names import GraphName
from experiments.options import Dropout, StudyOptions, TrainingOptions
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import WEIGHTS, SchemeOptions, UsedBy


@dataclass(frozen=True, kw_only=True)
class GraphConfig(TrainingOptions, SchemeOptions):
    """Train a graph attention network and evaluate its best epoch on the test nodes.

    Args:
        dataset: Name of the graph.
        patience: Number of epochs without a better validation accuracy or loss before training stops.
        num_samples: Number of posterior samples of a prediction.
        normalizer: Function that turns positive numbers into weights. softmax normalizes over the neighbors;
            doubly_normalized first normalizes over the nodes that attend to a neighbor; hybrid is a trained mixture.
        graph: File of your own graph, which takes the place of the data set: a numpy archive with the keys that
            experiments/data/graphs/load.py lists.
        architecture: Network. gat is as first published; residual_gat adds skip connections, layer norm and a network
            after each attention; gat_sep is residual_gat with a node's own features beside those it attends to (and no
            self loop).
        scores: Attention scores. gat is graph attention as first published; gatv2 can rank the neighbors differently
            for each node that attends.
        layers: Number of attention layers.
        value_dropout: In the architecture gat, drop the aggregated features too, as the original code does and PyG's
            layer does not. The residual architectures never drop them.
        monitor: Rule that picks the epoch. both waits for the best metric and the best loss, as in the first GAT;
            metric looks at the accuracy alone (ROC AUC where the graph asks for it), as Platonov et al. do.
        kl_weight: Weight of the KL, in the ELBO summed over labeled nodes.
        kl_scale: Quantity that the weight multiplies. edge is the mean KL of an attention weight, times the number of
            labeled nodes; total is the KL summed over edges, heads and layers, which drowns few labels among many
            edges.
        hidden: Width of a hidden head.
        heads: Number of hidden heads.
        dropout: Dropout probability. In the architecture gat it applies to the inputs of both layers and to the
            attention weights; in the residual ones, behind the input layer and inside the network after each attention.
        weight_decay: L2 penalty on every parameter.
        split_seed: Seed of the split of digits, or number of the split of a graph that has several.
        labels_per_class: Number of training labels that each class keeps, drawn by the seed. A class with fewer labels
            keeps all of them; every class does when omitted.
        feature_noise: Fraction of the non-zero features that move to a random column of their row, drawn by the seed.
        edge_noise: Number of random edges to add, as a fraction of the edges of the graph, drawn by the seed.
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
