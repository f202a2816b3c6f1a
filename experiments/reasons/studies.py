"""The studies of reasons that are known."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

from experiments.reasons.bags import DECAYS, FOLDS, SIZES, TEST_BAGS
from experiments.reasons.edges import COMPONENTS
from experiments.reasons.neighbors import KINDS, NEIGHBORS, neighborhood, read_explanations
from experiments.reasons.network import HIDDEN
from experiments.reasons.task import ReasonTask
from experiments.report.figures import save
from experiments.report.report import Part
from experiments.report.statistics import Column, beside
from experiments.study import Finished, Study, run_study

TASK = ReasonTask()
TOP_1 = Column("top-1", "{kind}_top_1", 3, better="higher")
AUROC = Column("AUROC", "{kind}_auroc", 3, better="higher")
ECE = Column("ECE", "{kind}_ece", 4, better="lower")
ECE_FLOOR = Column("ECE floor", "{kind}_ece_floor", 4, better="lower")
ACCURACY = Column("accuracy", "accuracy", 3, better="higher")
AGREEMENT = Column("agreement", "{kind}_agreement", 3)
STEP = Column("step / soft", "{kind}_step_ratio", 2)

POSTERIOR = {
    "soft attention, exact posterior": ("soft attention", "posterior"),
    "Marginal, exact posterior": ("Marginal, prior", "posterior"),
}
PICTURED = ("soft attention", "GNNExplainer", "Marginal, prior", "Marginal, exact posterior")


def _summary(finished: Finished) -> list[Part]:
    """Say of how many nodes the causal edge is named; nothing where rows or levels are missing."""
    level = next(iter(CAUSAL_EDGES.levels))
    if {*PICTURED} - {*finished.rows} or level not in finished.study.levels:
        return []
    gnn, posterior, soft = (
        f"{fmean(finished.values(row, TOP_1, level)):.1%}" for row in (PICTURED[1], PICTURED[3], PICTURED[0])
    )
    text = (
        f"The exact posterior of Marginal() names the causal edge of {posterior} of nodes, GNNExplainer that of {gnn}, "
        f"soft attention that of {soft}."
    )
    return [Part(text=text)]


def _one_node(finished: Finished) -> list[Part]:
    """Draw the edges of a node of the first seed by several explanations; nothing where rows are missing."""
    if {*PICTURED} - {*finished.rows}:
        return []
    level, shares = next(iter(finished.study.levels)), {}
    for row in PICTURED:
        kind = finished.study.readings.get(row, (row, "mean"))[1]
        config = finished.configs[finished.trained_row(row), level, finished.seeds[0]]
        explanations = read_explanations(Path(str(config.out)))
        shares[row] = explanations[kind]
    picture = save(neighborhood(shares, explanations["cause"]), finished.pictures / "causal_edges.png")
    caption = (
        "A node, its six neighbors, and the probability of each edge; the causal edge is red. Node of the first test "
        "graph at which soft attention is least sure of the causal edge, while the posterior names it."
    )
    return [Part("One node and its edges", caption, picture=picture)]


CAUSAL_EDGES = Study(
    name="causal-edges",
    title="Which neighbor is the reason: graphs with one causal edge a node",
    text=(
        f"Every node has a kind and a class, both observed with noise, and asks for one of {KINDS} kinds. One of its "
        f"{NEIGHBORS} neighbors is of that kind, and the node's label is that neighbor's class. Networks: one layer of "
        f"GATv2 attention, one head of width {HIDDEN}, and a linear map; {{config.steps}} steps of Adam on a graph of "
        "{config.nodes} nodes. The weights with the best accuracy on a second graph, with labels as noisy, are kept, "
        "and tested on a third one, whose labels are true. GNNExplainer and the posteriors know the label of the node "
        "whose reason they look for; attention and the prior do not. PyG's explainers explain the soft network. "
        "Explanations are divided by their sum over the edges of a node; GNNExplainer's masks are no probabilities, "
        "and attention weights do not claim to be. Weibull: concentration 10, contextual prior, KL weight .01 except "
        "where the row says 1, 50 samples. Top-1: share of nodes whose most probable edge is the causal one. AUROC: of "
        "the probabilities of all edges. ECE: their expected calibration error, 15 bins. Agreement: share of test "
        "nodes with the same most probable reason in two runs of the explanation. Step / soft: time of a training step "
        "under Marginal, divided by that of soft attention, medians of steps in turn."
    ),
    task=TASK,
    heads=("explained by", "training labels"),
    rows={
        "soft attention": {"guide": "soft"},
        "Weibull": {"guide": "weibull"},
        "Weibull, KL weight 1": {"guide": "weibull", "kl_weight": 1.0},
        "Marginal, prior": {"guide": "marginal"},
    },
    readings={
        "AttentionExplainer": ("soft attention", "attention_explainer"),
        "GNNExplainer": ("soft attention", "gnn_explainer"),
        **POSTERIOR,
    },
    levels={"true labels": {}, "20 % flipped": {"flipped": 0.2}},
    seeds=5,
    columns=(TOP_1, *beside(AUROC, ECE, ACCURACY, AGREEMENT, STEP)),
    parts=(_summary, _one_node),
)

REAL_EDGES = Study(
    name="real-edges",
    title="Which edges are real: houses and citations among edges at random",
    text=(
        "Houses: a graph of Barabasi and Albert (300 nodes) with 60 houses and a tenth more edges at random; a node's "
        "class is its position in a house, or none, and its features are its degree. Real edges: those of the houses. "
        f"Cora: as many edges at random as there are; features are {COMPONENTS} principal components of the words; "
        "half of the papers are for training. Real edges: the citations. Numbers are of the edges into test nodes "
        "that have real and other edges, whose label GNNExplainer and the posteriors know. Networks: one layer of "
        "GATv2 attention, which reads neighbors alone; {config.steps} steps of Adam. Top-1: share of nodes whose "
        "most probable edge is real. AUROC: of all these edges. Agreement: share of nodes whose most probable edge is "
        "the same by a network, and an explainer, that began otherwise. Accuracy: share of test labels predicted right."
    ),
    task=TASK,
    heads=("explained by", "graph"),
    options={"steps": 100, "explainer_epochs": 100},
    rows={"soft attention": {"guide": "soft"}, "Marginal, prior": {"guide": "marginal"}},
    readings={"GNNExplainer": ("soft attention", "gnn_explainer"), **POSTERIOR},
    levels={"houses": {"problem": "houses"}, "Cora": {"problem": "cora"}},
    seeds=5,
    columns=(AUROC, *beside(TOP_1, AGREEMENT, ACCURACY)),
)

BAGS = Study(
    name="bags",
    title="Which instance is the reason: bags of digits",
    text=(
        f"Bags of {SIZES[0]} to {SIZES[1]} of scikit-learn's digits; half of them hold one nine, which is the label. A "
        "hidden layer of width 32 and attention pooling of Ilse et al. (2018); {config.steps} steps of Adam. Rows are "
        f"geometric means over {FOLDS} networks a seed, each trained without another fifth of the bags; the weight "
        f"decay of a network, one of {', '.join(map(str, DECAYS))}, is that by which it predicts the labels of this "
        f"fifth best. Scores are those of {TEST_BAGS} bags of images that no training bag has. The reason is looked "
        "for in the positive ones, by attention, by the softmax over the logits of max pooling, or by the exact "
        "posterior given the label; each is a probability of every instance to be the nine. Weibull: concentration "
        "10, fixed Gamma prior, KL weight .01, 20 samples. Top-1: share of bags whose most probable instance is the "
        "nine. AUROC: of the probabilities of all instances. ECE: their expected calibration error, 15 bins; its "
        "floor: the ECE if the reasons were drawn from these probabilities. Accuracy: share of labels predicted right."
    ),
    task=TASK,
    heads=("pooling", "training bags"),
    options={"problem": "bags", "steps": 100},
    rows={
        "attention pooling": {"guide": "soft"},
        "max pooling": {"guide": "soft", "pooling": "max"},
        "Weibull": {"guide": "weibull"},
        "Marginal, prior": {"guide": "marginal"},
    },
    readings={
        "attention pooling, exact posterior": ("attention pooling", "posterior"),
        "Marginal, exact posterior": ("Marginal, prior", "posterior"),
    },
    levels={str(count): {"bags": count} for count in (50, 100, 200)},
    seeds=20,
    columns=(AUROC, *beside(TOP_1, ECE, ECE_FLOOR, ACCURACY)),
)

STUDIES = {study.name: study for study in (CAUSAL_EDGES, REAL_EDGES, BAGS)}

table = partial(run_study, STUDIES)
