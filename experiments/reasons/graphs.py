"""Which edges are real: houses in a random graph, and citations, each among edges that were added at random."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyro
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from experiments.datasets.graphs.load import GraphData, add_edge_noise, load_graph, random_split, split_masks
from experiments.harness.folder import exclusive, open_run
from experiments.reasons.config import GraphsConfig
from experiments.reasons.edges import AGREEMENT, Data, Reader, accuracy, explain_by_pyg, predicted, train
from experiments.reasons.report import ACCURACY, AUROC, TOP_1, closing, publish, table
from experiments.report.report import Part, Report
from pyro_attention import AlignmentPrior, Marginal, Soft, exact_alignments

COMPONENTS, DEGREES = 64, 10  # of the words of a paper; of a node in the other graph
Explained = tuple[Tensor, float]  # a number for every edge, and the accuracy of the network


def houses(seed: int) -> tuple[GraphData, Tensor]:
    """Barabasi's and Albert's graph with 60 houses, classes the places in a house, a tenth more edges at random."""
    from torch_geometric.datasets import ExplainerDataset
    from torch_geometric.datasets.graph_generator import BAGraph

    pyro.set_rng_seed(seed)  # PyG takes NumPy's random numbers too
    graph = ExplainerDataset(BAGraph(300, 5), "house", num_motifs=60)[0]
    split = random_split(graph.y, seed, per_class=30, validation=120)
    data = GraphData("houses", torch.zeros(len(graph.y), 1), graph.y, graph.edge_index, num_classes=4, **split)
    data, real = add_edge_noise(data, 0.1, seed=seed), graph.edge_mask.bool()
    degree = data.edge_index[1].bincount().clamp(max=DEGREES - 1)
    return replace(data, features=torch.eye(DEGREES)[degree]), real


def cora(config: GraphsConfig, seed: int) -> tuple[GraphData, Tensor]:
    """Cora with as many edges at random as there are, half of its papers to train on, in principal components."""
    data = load_graph("cora", data_root=config.data_root)
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))
    half, ninth = data.num_nodes // 2, data.num_nodes // 9
    masks = split_masks(data.num_nodes, *order.tensor_split([half, half + ninth]))
    torch.manual_seed(seed)
    words, _, _ = torch.pca_lowrank(data.features.to_dense(), min(COMPONENTS, *data.features.shape))
    features = words * len(words) ** 0.5
    real = torch.ones(data.edge_index.size(1), dtype=torch.bool)
    return add_edge_noise(replace(data, features=features, **masks), 1.0, seed=seed), real


def explain(data: GraphData, config: GraphsConfig, seed: int) -> dict[str, Explained]:
    """Numbers of every edge by each row, with networks and explainers of one seed."""
    from torch_geometric.explain import GNNExplainer

    parts = {
        name: Data(data.features, data.edge_index, data.labels, data.labels, getattr(data, f"{name}_mask"))
        for name in ("train", "val", "test")
    }
    test, width, found = parts["test"], data.features.size(1), dict[str, Explained]()
    for name, family in (("soft attention", Soft()), ("Marginal", Marginal())):
        torch.manual_seed(seed)
        model = Reader(AlignmentPrior(), mixes=isinstance(family, Marginal), width=width, classes=data.num_classes)
        train(model, family, parts["train"], parts["val"], steps=config.steps, kl_weight=1.0)
        probabilities, weights = predicted(model, test)
        share = accuracy(probabilities, test)
        found[name if name == "soft attention" else "Marginal, prior"] = weights.squeeze(-1), share
        if name == "soft attention":
            torch.manual_seed(seed)
            explainer = GNNExplainer(epochs=config.explainer_epochs)
            found["GNNExplainer"] = explain_by_pyg(model, test, explainer, "phenomenon"), share
        posterior = exact_alignments(model, test.x, test.graph, test.y)["neighbor"].squeeze(-1)
        found[f"{name}, exact posterior"] = posterior, share
    return found


def scores(data: GraphData, real: Tensor, first: Explained, second: Explained) -> dict[str, float]:
    """How well real edges are told from added ones, at the test nodes that have both, and how alike two seeds are."""
    targets, count = data.edge_index[1], data.num_nodes
    real = torch.cat([real, real.new_zeros(len(targets) - len(real))])
    both = torch.zeros(2, count).index_put((real.long(), targets), torch.ones(())).bool().all(0) & data.test_mask
    lots = torch.rand(len(targets), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares, tops = [], []
    for weights in (first[0].double(), second[0].double()):
        total = weights.new_zeros(count).index_add(0, targets, weights)
        shares.append((weights / total[targets].clamp(min=1e-9)).clamp(0, 1))
        drawn = weights * (1 + 1e-6 * lots)  # between equal ones
        tops.append(drawn >= drawn.new_zeros(count).scatter_reduce(0, targets, drawn, "amax")[targets])
    asked = both[targets]
    return {
        "top_1": real[tops[0] & asked].float().mean().item(),
        "auroc": binary_auroc(shares[0][asked], real[asked].long()).item(),
        "accuracy": first[1],
        "agreement": (tops[0] & tops[1] & asked).sum().item() / both.sum().item(),
    }


@exclusive
def run(config: GraphsConfig) -> dict[str, float]:
    """Train and explain all networks, print the table, and write metrics, report and results/."""
    open_run(config.out or Path("runs", "reasons", "graphs"), config, free=("results",))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {"houses": {}, "Cora": {}}
    for level, rows in runs.items():
        for seed in range(config.seeds):
            data, real = houses(seed) if level == "houses" else cora(config, seed)
            first, second = (explain(data, config, 2 * seed + again) for again in range(2))
            for row in first:
                rows.setdefault(row, []).append(scores(data, real, first[row], second[row]))
            print(f"{level}, seed {seed}: done", flush=True)
    text = (
        f"Houses: a graph of Barabasi and Albert (300 nodes) with 60 houses and a tenth more edges at random; a node's "
        f"class is its place in a house, or none, and its features are its degree. Real edges: those of the houses. "
        f"Cora: as many edges at random as there are; features are {COMPONENTS} principal components of the words; "
        f"half of the papers are for training. Real edges: the citations. Numbers are of the edges into test nodes "
        f"that have real and other edges, whose label GNNExplainer and the posteriors know. Networks: one layer of "
        f"GATv2 attention, which reads neighbors alone; {config.steps} steps of Adam. Top-1: share of nodes whose "
        f"most probable edge is real. AUROC: of all these edges. Agreement: share of nodes whose most probable edge is "
        f"the same by a network, and an explainer, that began otherwise. {closing(config.seeds, ACCURACY)}"
    )
    shown = table("explained by", "graph", runs, (TOP_1, AUROC, AGREEMENT, ACCURACY), AUROC)
    title = "Which edges are real: houses and citations among edges at random"
    return publish(config, "graphs", Report(title, "real-edges", [Part(text=text, rows=shown, labels=2)]), runs)
