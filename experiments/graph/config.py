"""Options of the scripts on node classification."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.names import GraphName
from experiments.harness.options import Dropout, SweepOptions, TrainingOptions
from guides.names import NormalizerName, WeightsSchemeName
from guides.options import SchemeOptions

__all__ = [
    "ArchitectureName",
    "CompareGraphs",
    "EpochOptions",
    "GraphConfig",
    "GraphOptions",
    "KLScale",
    "NormalizerName",
    "PriorNodes",
    "ScheduleName",
    "SearchConfig",
    "StudyConfig",
    "StudyName",
    "TableConfig",
    "TableName",
    "UniformityConfig",
]

ArchitectureName = Literal["gat", "residual_gat", "gat_sep"]
KLScale = Literal["total", "edge"]
PriorNodes = Literal["neighbours", "all"]
ScheduleName = Literal["constant", "linear", "sigmoid", "cyclical"]
TableName = Literal["bam1", "normalizers", "heterophilous"]
StudyName = Literal["label_rate", "feature_noise", "edge_noise"]


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """How long the trainings of a sweep go on.

    Args:
        max_epochs: Epochs at most.
        patience: Epochs without as good a validation accuracy or loss before training stops.
    """

    max_epochs: PositiveInt = 2000
    patience: PositiveInt = 100


@dataclass(frozen=True, kw_only=True)
class GraphOptions(EpochOptions):
    """What a comparison on one graph has in common with its runs.

    Args:
        dataset: The graph.
        num_samples: Samples of a prediction.
    """

    dataset: GraphName = "cora"
    num_samples: PositiveInt = 50


@dataclass(frozen=True, kw_only=True)
class GraphConfig(GraphOptions, TrainingOptions, SchemeOptions):
    """Train a graph attention network and evaluate its best epoch on the test nodes.

    Args:
        normalizer: What makes weights of positive numbers: a softmax over the neighbours; doubly_normalized, first over
            the nodes that attend to a neighbour; hybrid, a trained mixture of both.
        graph: Your own graph instead of a data set: a numpy archive with the keys of
            experiments.datasets.graphs.masked.
        architecture: gat, as first published; residual_gat, with skip connections, layer norm and a network after
            each attention; gat_sep, the same with a node's own features beside those it attends to (and no self loop).
        scores: Of graph attention as first published, or of GATv2, which can rank neighbours by who attends.
        layers: Number of attention layers.
        value_dropout: In the architecture gat, drop the features that are aggregated too, as the original code does
            and PyG's layer does not; the residual architectures do not drop them.
        monitor: What decides on the kept epoch: both needs the best of metric and loss, as in the first GAT; metric
            looks at the accuracy (ROC AUC where the graph asks for it) alone, as Platonov et al. do.
        kl_weight: Weight of the KL, in the ELBO summed over labelled nodes.
        kl_scale: What the weight multiplies: edge, the mean KL of an attention weight, times the number of labelled
            nodes; total, the KL summed over edges, heads and layers, which drowns few labels among many edges.
        prior_nodes: Over which nodes the contextual prior's softmax runs: a node's neighbours, or all, as in the
            released code of Bayesian Attention Modules; the latter is refused where there is no contextual prior.
        kl_schedule: How the weight develops over the training steps.
        kl_steps: Steps until the linear weight is full, or the period of the cyclical one.
        kl_rate: Rate of the sigmoid weight, which starts at a half.
        hidden: Width of a hidden head.
        heads: Number of hidden heads.
        dropout: In the architecture gat, dropout of the inputs of both layers and of the attention weights; in the
            residual ones, behind the input layer and inside the network after each attention.
        weight_decay: L2 penalty on every parameter.
        seed: Seed of the initial weights and of all noise.
        split_seed: Seed of the split of digits and dblp, or number of the split of graphs that have several.
        labels_per_class: Training labels kept in each class, or all of a class that has fewer, drawn by the seed; all
            when omitted.
        feature_noise: Fraction of the non-zero features that move to a random place in their row, drawn by the seed.
        edge_noise: Random edges added, as a fraction of the edges there are, drawn by the seed.
    """

    dataset: GraphName = "digits"
    guide: WeightsSchemeName = "weibull"
    normalizer: NormalizerName = "softmax"
    graph: Path | None = None
    architecture: ArchitectureName = "gat"
    scores: Literal["gat", "gatv2"] = "gat"
    layers: PositiveInt = 2
    value_dropout: bool = True
    monitor: Literal["both", "metric"] = "both"
    kl_scale: KLScale = "edge"
    prior_nodes: PriorNodes = "neighbours"
    kl_weight: NonNegativeFloat = 0.1
    kl_schedule: ScheduleName = "constant"
    kl_steps: PositiveInt = 100
    kl_rate: NonNegativeFloat = 1.0
    hidden: PositiveInt = 8
    heads: PositiveInt = 8
    dropout: Dropout = 0.6
    learning_rate: PositiveFloat = 0.005
    weight_decay: NonNegativeFloat = 5e-4
    max_epochs: PositiveInt = 1000
    split_seed: NonNegativeInt = 0
    labels_per_class: PositiveInt | None = None
    feature_noise: ClosedUnitInterval = 0.0
    edge_noise: NonNegativeFloat = 0.0


@dataclass(frozen=True, kw_only=True)
class CompareGraphs(GraphOptions, SweepOptions):
    """Compare the kinds of attention on a graph.

    Args:
        task: The task; --task translation has other options.
        seeds: Number of seeds; each row is trained once a seed.
        kl_weight: Weight of the KL in the Bayesian rows; see experiments.graph.
    """

    task: Literal["graph"] = "graph"
    dataset: GraphName = "digits"
    seeds: PositiveInt = 2
    max_epochs: PositiveInt = 80
    patience: PositiveInt = 80
    kl_weight: NonNegativeFloat = 0.1
    num_samples: PositiveInt = 30


@dataclass(frozen=True, kw_only=True)
class SearchConfig(SweepOptions):
    """Try every setting of a table's rows and write which is best on the validation nodes into RESULTS.md.

    Args:
        name: The table whose rows are searched.
        dataset: The graph; what is found on it is meant for the others of the table, too.
        max_epochs: Epochs at most; the table's own number when omitted.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        rows: Rows of the table; all that have settings to try when omitted.
        seeds: Number of seeds; they are those after the table's, so that no run serves both. On a graph with fixed
            splits the first seed has the first split, and so on.
        first_seed: The first of them.
    """

    name: Literal["bam1", "heterophilous"]
    dataset: GraphName = "cora"
    max_epochs: PositiveInt | None = None
    patience: PositiveInt = 100
    rows: tuple[str, ...] = ()
    seeds: PositiveInt = 3
    first_seed: PositiveInt = 1000


@dataclass(frozen=True, kw_only=True)
class StudyConfig(SweepOptions):
    """Train some rows at several levels of one difficulty, and write a section of RESULTS.md with a picture.

    A graph of the table heterophilous has that table's network and training, any other one that of bam1.

    Args:
        name: The study.
        dataset: The graph.
        max_epochs: Epochs at most; the table's own number when omitted.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        num_samples: Samples of a prediction.
        rows: Rows of the tables on graphs.
        seeds: Number of seeds, shared by rows and levels; they draw the labels or the noise too, and choose the split
            of a graph that has several.
    """

    name: StudyName
    dataset: GraphName = "cora"
    max_epochs: PositiveInt | None = None
    patience: PositiveInt = 100
    num_samples: PositiveInt = 50
    rows: tuple[str, ...] = ("soft", "WC")
    seeds: PositiveInt = 3


@dataclass(frozen=True, kw_only=True)
class TableConfig(SweepOptions):
    """Train the rows of a table and write it into RESULTS.md, with a picture.

    Runs that are complete in the folder are read, not repeated, so seeds can be added later.

    Args:
        name: The table.
        seeds: Number of seeds, shared by the rows; in the table heterophilous they are the numbers of the splits too.
        first_seed: The first of them.
        graphs: Graphs of the table, which then has a section of its own; all of them when omitted.
        rows: Rows of the table, those among them that others are compared with; all when omitted.
        architecture: Network of every row; the table's own when omitted.
        layers: Number of attention layers; the table's own when omitted.
        max_epochs: Epochs at most; the table's own number when omitted.
        num_samples: Samples of a prediction; the table's own number when omitted.
    """

    name: TableName
    seeds: PositiveInt = 10
    first_seed: NonNegativeInt = 0
    graphs: tuple[GraphName, ...] = ()
    rows: tuple[str, ...] = ()
    architecture: ArchitectureName | None = None
    layers: PositiveInt | None = None
    max_epochs: PositiveInt | None = None
    num_samples: PositiveInt | None = None


@dataclass(frozen=True, kw_only=True)
class UniformityConfig(EpochOptions, SweepOptions):
    """Measure the entropy of learned attention, and the accuracy when it is replaced by uniform attention.

    Args:
        datasets: The graphs.
        rows: Rows of the tables on graphs.
        seeds: Number of seeds.
    """

    datasets: tuple[GraphName, ...] = ("cora", "citeseer")
    rows: tuple[str, ...] = ("soft", "WC")
    seeds: PositiveInt = 5
