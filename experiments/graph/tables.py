"""What the tables of experiments.table hold: rows, data sets, the paper's numbers, and what is shown of each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.graph.config import GraphOptions, TableName
from experiments.graph.rows import GRIDS, LEGEND, ROWS, SEARCHED, SUMMED_KL, settings
from experiments.harness.options import options_of
from experiments.reporting.columns import Column

__all__ = [
    "AUC",
    "BASELINE",
    "DATASETS",
    "ENSEMBLE",
    "MAIN",
    "TABLES",
    "Block",
    "Table",
    "TableName",
    "sampled",
    "scores",
]

BASELINE = "soft"  # the row that the others are compared with
DATASETS = {"cora": "Cora", "citeseer": "Citeseer"}  # with the names shown
MAIN = Column("accuracy %", "test_mean_accuracy", 2, 100)  # compared with the paper and with the baseline

AUC = Column("ROC AUC %", "test_mean_roc_auc", 2, 100)


@dataclass(frozen=True)
class Block:
    """Some columns with a title; rows without the first column's metric are left out."""

    title: str  # {num_samples} is filled in, here and in the text
    text: str
    columns: Sequence[Column]


@dataclass(frozen=True)
class Table:
    """Rows on some graphs, for some seeds."""

    title: str
    text: str  # what the rows are and how they were trained
    rows: Mapping[str, Mapping[str, Any]]  # their options; epochs and samples are the defaults of GraphOptions
    blocks: Sequence[Block]  # what is shown beside the main number
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the paper's numbers, by row and graph
    references: Mapping[str, str] = field(default_factory=dict)  # rows that are compared with another one
    datasets: Mapping[str, str] = field(default_factory=lambda: DATASETS)  # with the names shown
    training: Mapping[str, Any] = field(default_factory=dict)  # options of all rows, such as another number of epochs
    graph_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # and of one graph
    # rows that differ on a graph
    graph_rows: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    auc: Sequence[str] = ()  # graphs whose main number is ROC AUC
    splits: bool = False  # a seed is the number of a fixed split too, so that runs of a row have other test nodes

    def options(self, dataset: str, **given: Any) -> dict[str, Any]:
        """Options of every training on a graph: the defaults, the table's own, and what is given and not None."""
        chosen = {name: value for name, value in given.items() if value is not None}
        defaults = options_of(GraphOptions(), GraphOptions)
        return {**defaults, **self.training, **self.graph_options.get(dataset, {}), **chosen, "dataset": dataset}

    def reference(self, row: str) -> str:
        """Row that this one is compared with."""
        return self.references.get(row, BASELINE)

    def main(self, dataset: str) -> Column:
        """The number that is compared with the baseline."""
        return AUC if dataset in self.auc else MAIN


def scores(kind: str) -> list[Column]:
    """Confidence before and after temperature scaling, of a kind of prediction."""
    return [
        Column("NLL", f"test_{kind}_nll"),
        Column("ECE", f"test_{kind}_ece"),
        Column("Brier", f"test_{kind}_brier"),
        Column("T", f"{kind}_temperature", 2),
        Column("NLL, scaled", f"test_{kind}_scaled_nll"),
        Column("ECE, scaled", f"test_{kind}_scaled_ece"),
        Column("Brier, scaled", f"test_{kind}_scaled_brier"),
        Column("AURC", f"test_{kind}_aurc"),
    ]


def sampled(kind: str, noise: str) -> Block:
    """All scores of the mean probability over samples of some noise."""
    return Block(
        f"Probabilities averaged over {{num_samples}} samples of {noise}",
        "PAvPU by paired t-tests on the logits of these samples; it depends strongly on their number.",
        [
            Column("accuracy %", f"test_{kind}_accuracy", 2, 100),
            *(column for column in scores(kind) if "Brier" not in column.name),
            Column("mutual information", f"test_{kind}_mutual_information", 4),
            *(Column(f"PAvPU .{level}", f"test_{kind}_pavpu_{level}", 1, 100) for level in ("01", "05", "10")),
        ],
    )


ENSEMBLE = (MAIN, *scores("mean"))  # what is shown of an ensemble

_BAM1 = Table(
    title="Bayesian Attention Modules, Table 1: node classification on citation graphs",
    text=(
        f"{LEGEND} GAT with 8 heads of width 8 and one output head, public split, row-normalised features, Adam with "
        f"learning rate .005 and L2 penalty 5e-4 on all parameters, dropout .6 of inputs, attention weights and "
        f"aggregated features, up to 2000 epochs, patience 100 on validation accuracy and loss, as the original. KL "
        f"weight .001, in an ELBO summed over nodes and edges. Rows of one seed start from the same weights. "
        f"Tried on Cora's validation nodes alone, with three other seeds (`python -m experiments.search bam1`), at "
        f"most {max(map(len, GRIDS.values()))} settings a row, and used on both graphs: "
        + "; ".join(
            f"{row}: " + ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())
            for row, setting in SEARCHED.items()
        )
        + ". Scores are those of the test nodes."
    ),
    rows=settings([row for row in ROWS if row in GRIDS]),
    training=SUMMED_KL,
    paper={
        "soft": {"cora": 83.00, "citeseer": 72.50},
        "no KL": {"cora": 83.39, "citeseer": 72.91},
        "LF": {"cora": 83.24, "citeseer": 72.86},
        "LC": {"cora": 83.34, "citeseer": 73.04},
        "WF": {"cora": 83.48, "citeseer": 73.18},
        "WC": {"cora": 83.81, "citeseer": 73.52},
    },
    blocks=[
        Block(
            "Confidence before and after temperature scaling",
            "Attention at its posterior mean, no dropout. The temperature T is fitted to the validation nodes of the "
            "same run; below 1 the network was not confident enough.",
            scores("mean"),
        ),
        sampled("attention", "the attention alone"),
        sampled("mc_dropout", "dropout alone (attention at its posterior mean)"),
        sampled("both", "attention and dropout"),
        Block(
            "Where the variance comes from",
            "Shares in the variance of the class probabilities of the test nodes, over {num_samples} samples each.",
            [
                Column("attention noise", "variance_share_attention", 4),
                Column("dropout", "variance_share_dropout", 4),
                Column("interaction", "variance_share_interaction", 4),
            ],
        ),
        Block(
            "Attention and training",
            "Entropy of the mean attention relative to uniform attention (1 = uniform); median time of a training step "
            "on one thread, with as many runs at a time as cores.",
            [
                Column("relative entropy", "attention_entropy", 4),
                Column("epochs", "epochs", 0),
                Column("validation %", "val_accuracy", 2, 100),
                Column("ms/step", "step_ms", 1),
            ],
        ),
    ],
)

_NORMALIZERS = replace(
    _BAM1,
    title="Attention that does not Explain Away: doubly normalised and hybrid attention on citation graphs",
    text=(
        "doubly: weights normalised over the nodes that attend to a neighbour first, then over the neighbours; "
        "hybrid: a trained mixture of that and the softmax, from .5, one a head. WC: Weibull posterior, contextual "
        "prior, as in the table of Bayesian Attention Modules, from which all other settings are; none were searched "
        "here. The paper has no graphs. The contextual prior prefers some neighbours whichever node attends, which "
        "the normalisation over nodes takes back in part. Scores are those of the test nodes."
    ),
    rows={
        f"{row}{suffix}": {**_BAM1.rows[row], **({"normalizer": name} if suffix else {})}
        for row in ("soft", "WC")
        for suffix, name in (("", "softmax"), (" doubly", "doubly_normalized"), (" hybrid", "hybrid"))
    },
    references={"WC doubly": "WC", "WC hybrid": "WC"},
    paper={},
    blocks=[
        *_BAM1.blocks,
        Block(
            "Mixing weight of hybrid attention",
            "Share of doubly normalised attention at the best epoch, mean over heads; training begins with .5.",
            [Column("first layer", "hybrid_layers.0"), Column("second layer", "hybrid_layers.1")],
        ),
    ],
)

TABLES: dict[TableName, Table] = {"bam1": _BAM1, "normalizers": _NORMALIZERS}
