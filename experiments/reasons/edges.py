"""Graphs with edges at random among the real ones: houses, and the citations of Cora."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyro
import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc

from experiments.data.graphs.load import GraphData, add_edge_noise, load_graph, random_split, split_masks
from experiments.files import UserError
from experiments.reasons.config import ReasonConfig
from experiments.reasons.network import NodeData, Reader, accuracy, explain_by_pyg, predicted, train
from experiments.reasons.scores import named
from pyro_attention import AlignmentPrior, Marginal, Soft, exact_alignments

COMPONENTS, DEGREES = 64, 10  # of the words of a paper; of a node of the other graph


class NoisyGraph(NamedTuple):
    """Graph with edges that were added, and which of its first edges are real; all behind these were added."""

    data: GraphData
    real: Tensor


def load(config: ReasonConfig) -> NoisyGraph:
    """Load the graph of a seed, with its edges at random."""
    return houses(config.seed) if config.problem == "houses" else cora(config)


def houses(seed: int) -> NoisyGraph:
    """Make Barabasi's and Albert's graph with 60 houses, and a tenth more edges at random.

    The class of a node is its position in a house.
    """
    from torch_geometric.datasets import ExplainerDataset
    from torch_geometric.datasets.graph_generator import BAGraph

    pyro.set_rng_seed(seed)  # PyG takes NumPy's random numbers too
    graph = ExplainerDataset(BAGraph(300, 5), "house", num_motifs=60)[0]
    split = random_split(graph.y, seed, per_class=30, validation=120)
    data = GraphData("houses", torch.zeros(len(graph.y), 1), graph.y, graph.edge_index, num_classes=4, **split)
    data, real = add_edge_noise(data, 0.1, seed=seed), graph.edge_mask.bool()
    degree = data.edge_index[1].bincount().clamp(max=DEGREES - 1)
    return NoisyGraph(replace(data, features=torch.eye(DEGREES)[degree]), real)


def cora(config: ReasonConfig) -> NoisyGraph:
    """Load Cora with as many random edges as citations, half of its papers to train on, in principal components."""
    data, seed = load_graph("cora", data_root=config.data_root), config.seed
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(seed))
    half, ninth = data.num_nodes // 2, data.num_nodes // 9
    masks = split_masks(data.num_nodes, *order.tensor_split([half, half + ninth]))
    torch.manual_seed(seed)
    words, _, _ = torch.pca_lowrank(data.features.to_dense(), min(COMPONENTS, *data.features.shape))
    features = words * len(words) ** 0.5
    real = torch.ones(data.edge_index.size(1), dtype=torch.bool)
    return NoisyGraph(add_edge_noise(replace(data, features=features, **masks), 1.0, seed=seed), real)


def score(config: ReasonConfig, data: NoisyGraph, _: Path) -> dict[str, float]:
    """Train two networks of other initial weights, and return the scores of what explains the first one."""
    first, second = (explain(config, data.data, seed=2 * config.seed + again) for again in range(2))
    metrics = {"accuracy": first.accuracy}
    for kind, weights in first.explanations.items():
        metrics |= named(kind, edge_scores(data, weights, second.explanations[kind]))
    return metrics


class Explained(NamedTuple):
    """Explanations of one network: a number for every edge, by their kind; and its accuracy."""

    explanations: dict[str, Tensor]
    accuracy: float


def explain(config: ReasonConfig, data: GraphData, *, seed: int) -> Explained:
    """Train a network, and explain its edges.

    Raises:
        UserError: The guide is weibull.
    """
    if config.guide == "weibull":
        raise UserError(f"guide is weibull, expected soft or marginal for the problem {config.problem}")
    parts = {
        name: NodeData(data.features, data.edge_index, data.labels, getattr(data, f"{name}_mask"))
        for name in ("train", "val", "test")
    }
    test, is_soft = parts["test"], config.guide == "soft"
    torch.manual_seed(seed)
    width, classes = data.features.size(1), data.num_classes
    model = Reader(AlignmentPrior(), width=width, classes=classes, mixes=not is_soft)
    train(model, Soft() if is_soft else Marginal(), parts["train"], parts["val"], steps=config.steps)
    probabilities, weights = predicted(model, test)
    explanations = {"mean": weights.squeeze(-1)}
    if is_soft:
        from torch_geometric.explain import GNNExplainer

        torch.manual_seed(seed)
        explainer = GNNExplainer(epochs=config.explainer_epochs)
        explanations["gnn_explainer"] = explain_by_pyg(model, test, explainer, "phenomenon")
    posterior = exact_alignments(model, test.x, test.graph, test.y)["neighbor"].squeeze(-1)
    return Explained(explanations | {"posterior": posterior}, accuracy(probabilities, test))


def edge_scores(graph: NoisyGraph, first: Tensor, second: Tensor) -> dict[str, float]:
    """Score how well real edges are told from added ones, at the test nodes that have both.

    Args:
        graph: The graph.
        first: A number for every edge, larger for more probable ones ``[E]``.
        second: The same explanation of another network, for the agreement of the two.
    """
    data, (targets, count) = graph.data, (graph.data.edge_index[1], graph.data.num_nodes)
    real = torch.cat([graph.real, graph.real.new_zeros(len(targets) - len(graph.real))])
    both = torch.zeros(2, count).index_put((real.long(), targets), torch.ones(())).bool().all(0) & data.test_mask
    lots = torch.rand(len(targets), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares, tops = [], []
    for weights in (first.double(), second.double()):
        total = weights.new_zeros(count).index_add(0, targets, weights)
        shares.append((weights / total[targets].clamp(min=1e-9)).clamp(0, 1))
        drawn = weights * (1 + 1e-6 * lots)  # between equal ones
        tops.append(drawn >= drawn.new_zeros(count).scatter_reduce(0, targets, drawn, "amax")[targets])
    asked = both[targets]
    return {
        "top_1": real[tops[0] & asked].float().mean().item(),
        "auroc": binary_auroc(shares[0][asked], real[asked].long()).item(),
        "agreement": (tops[0] & tops[1] & asked).sum().item() / both.sum().item(),
    }
