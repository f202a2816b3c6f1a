"""Which edge is the reason: one neighbor of a node, by its label; the real ones among edges at random."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pyro
import torch
from matplotlib.figure import Figure
from pyro.distributions import Categorical
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torchmetrics.functional.classification import binary_auroc

from experiments.data.graphs.load import GraphData, add_edge_noise, load_graph, random_split, split_masks
from experiments.folder import exclusive, open_run
from experiments.reasons.config import EdgesConfig, GraphsConfig
from experiments.reasons.report import ACCURACY, AUROC, ECE, TOP_1, closing, publish, reason_scores, table
from experiments.report.figures import panels, save
from experiments.report.report import RESULTS, Part, Report
from experiments.report.statistics import Column
from pyro_attention import (
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    EdgeList,
    GraphAttention,
    Marginal,
    NodeLikelihood,
    Soft,
    Weibull,
    elbo_for,
    exact_alignments,
    predict,
    sample_posterior,
)
from pyro_attention.families.base import Family, Prior
from pyro_attention.guide import attention_weights

KINDS, CLASSES, NEIGHBORS, WIDTH = 4, 5, 6, 8
NOISE = {"kind": 0.34, "class": 0.28}  # standard deviation of each feature
FLIPPED = {"true labels": 0.0, "20 % flipped": 0.2}
HIDDEN = 16


@dataclass(frozen=True)
class Data:
    """A graph whose node i is the target of the edges 6 i to 6 i + 5, of which the ``cause[i]``-th is the reason."""

    x: Tensor
    edges: Tensor
    y: Tensor
    cause: Tensor
    seen: Tensor | None = None  # nodes whose label counts, all of them when omitted

    @property
    def graph(self) -> EdgeList:
        return EdgeList.from_edge_index(self.edges, num_nodes=len(self.x))


def make_graph(nodes: int, *, flipped: float, seed: int) -> Data:
    """Every node has a kind, a class and asks for a kind; one neighbor is of that kind, whose class is the label.

    Kind and class are seen through noise. Flipped labels are drawn anew, all classes alike.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randint, size=(nodes,), generator=generator)
    kinds, classes, asked, cause = draw(KINDS), draw(CLASSES), draw(KINDS), draw(NEIGHBORS)
    # neighbors of other kinds, and one of the kind that is asked for, each by the highest of random numbers
    fits = kinds == asked.unsqueeze(-1)
    lots = torch.rand(nodes, nodes, generator=generator)
    sources = lots.masked_fill(fits, -1).topk(NEIGHBORS).indices
    sources[torch.arange(nodes), cause] = lots.masked_fill(~fits, -1).argmax(-1)
    y = classes[sources[torch.arange(nodes), cause]]
    y = torch.where(torch.rand(nodes, generator=generator) < flipped, draw(CLASSES), y)
    features = [
        one_hot(values, WIDTH) + NOISE[name] * torch.randn(nodes, WIDTH, generator=generator)
        for name, values in (("kind", kinds), ("class", classes))
    ]
    edges = torch.stack([sources.flatten(), torch.arange(nodes).repeat_interleave(NEIGHBORS)])
    return Data(torch.cat([*features, one_hot(asked, KINDS)], -1), edges, y, cause)


class Reader(pyro.nn.PyroModule):
    """Graph attention (GATv2) of one head and a linear map to the class of a node.

    ``mixes`` says that a node's class is that of one neighbor, and a prediction averages over neighbors.
    """

    def __init__(
        self, prior: Prior, *, mixes: bool = False, width: int = 2 * WIDTH + KINDS, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.attention = GraphAttention(
            width, HIDDEN, add_self_loops=False, scores="gatv2", prior=prior, name="neighbor"
        )
        self.head, self.mixes = nn.Linear(HIDDEN, classes), mixes

    def forward(self, x: Tensor, graph: EdgeList, y: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        output = self.attention.attend(x, graph)
        logits: Tensor = self.head(output.context)
        pyro.sample("y", NodeLikelihood(Categorical(logits=logits), output, mask=seen), obs=y)
        return logits


def train(
    model: Reader, family: Family, data: Data, valid: Data, *, steps: int, kl_weight: float
) -> Callable[[], None]:
    """Train a network, leave it with the weights of its best accuracy on validation data, and return its step."""
    guide = AttentionGuide(model, family)
    elbo = elbo_for(guide, max_plate_nesting=0)
    if isinstance(elbo, AttentionELBO):
        elbo.kl_weight = kl_weight
    loss, graph = elbo(model, guide), data.graph
    optimizer = torch.optim.Adam(loss.parameters(), 0.01, weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        loss(data.x, graph, data.y, data.seen).backward()
        optimizer.step()

    best, kept = -1.0, model.state_dict()
    for number in range(1, steps + 1):
        step()
        if number % 25 == 0:
            found = accuracy(predicted(model, valid)[0], valid)
            if found > best:
                best, kept = found, deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return step


def predicted(model: Reader, data: Data) -> tuple[Tensor, Tensor]:
    """Probabilities of the classes ``[N, classes]``, and the mean attention to every edge.

    Under an alignment prior each neighbor says what the class is, and the mean over them counts, as in training.
    """
    with torch.no_grad():
        run = AttentionGuide(model, Soft()).run(data.x, data.graph, data.y)
        site: Any = run.trace.nodes["neighbor"]
        weights = attention_weights(site)
        if not model.mixes:
            return run.output.softmax(-1), weights
        each = model.head(model.attention.lin_src(data.x) + model.attention.bias).softmax(-1)[data.edges[0]]
        return each.new_zeros(len(data.x), each.size(-1)).index_add(0, data.edges[1], weights * each), weights


def accuracy(probabilities: Tensor, data: Data) -> float:
    """Share of labels that are the most probable ones."""
    right = (probabilities.argmax(-1) == data.y).float()
    return (right if data.seen is None else right[data.seen]).mean().item()


def explain_by_pyg(model: Reader, data: Data, algorithm: Any, kind: str) -> Tensor:
    """Edge mask of an explainer of PyG for the same network in PyG's layers, for the labels of all nodes at once."""
    from torch_geometric.explain import Explainer
    from torch_geometric.nn import GATv2Conv, Sequential

    ours = model.attention
    conv = GATv2Conv(ours.in_channels, HIDDEN, ours.heads, add_self_loops=False)
    names = {"lin_src.": "lin_l.", "lin_dst.": "lin_r.", "score.att": "att"}
    state = {
        next((new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)), name): value
        for name, value in ours.state_dict().items() if not name.startswith("attention.")
    }  # fmt: skip
    conv.load_state_dict(state)
    network = Sequential("x, edge_index", [(conv, "x, edge_index -> x"), model.head])
    explainer = Explainer(
        network, algorithm, explanation_type=kind, edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )  # fmt: skip
    target = data.y if kind == "phenomenon" else None
    return explainer(data.x, data.edges, target=target).edge_mask.detach()


def explain_seed(config: EdgesConfig, flipped: float, seed: int) -> tuple[dict[str, dict[str, float]], Any]:
    """Scores of every row on a graph of its own, whose labels are true; and what the picture shows."""
    from torch_geometric.explain import AttentionExplainer, GNNExplainer

    data, valid = (make_graph(config.nodes, flipped=flipped, seed=of) for of in (seed, 2000 + seed))
    test, found, shown = make_graph(config.nodes, flipped=0.0, seed=1000 + seed), {}, {}
    given, steps = (test.x, test.graph, test.y), dict[str, Callable[[], None]]()

    def trained(family: Family, prior: Prior, kl_weight: float = 1.0) -> Reader:
        torch.manual_seed(seed)
        model, name = Reader(prior, mixes=isinstance(family, Marginal)), type(family).__name__
        steps[name] = train(model, family, data, valid, steps=config.steps, kl_weight=kl_weight)
        return model

    def add(row: str, probabilities: Tensor, weights: Tensor, **more: float) -> None:
        per_node = weights.view(-1, NEIGHBORS)
        shown[row] = per_node / per_node.sum(-1, keepdim=True)
        found[row] = {**reason_scores(shown[row], test.cause), "accuracy": accuracy(probabilities, test), **more}

    def add_drawn(row: str, kl_weight: float) -> None:
        guide = AttentionGuide(trained(Weibull(10.0), ContextualGammaPrior(HIDDEN, 1), kl_weight), Weibull(10.0))
        options: Any = {"num_samples": 50, "seed": 0}
        mean = predict(guide, *given, transform=lambda logits: logits.softmax(-1), **options).mean
        add(row, mean, sample_posterior(guide, *given, **options)["neighbor"].mean(0))

    soft, exact = trained(Soft(), AlignmentPrior()), trained(Marginal(), AlignmentPrior())
    classes, weights = predicted(soft, test)
    add("soft attention", classes, weights)
    add_drawn("Weibull", 0.01)
    add_drawn("Weibull, KL weight 1", 1.0)
    add("AttentionExplainer", classes, explain_by_pyg(soft, test, AttentionExplainer(), "model"))
    masks = []
    for again in range(2):
        torch.manual_seed(10 * seed + again)
        masks.append(explain_by_pyg(soft, test, GNNExplainer(epochs=config.explainer_epochs), "phenomenon"))
    first, second = (mask.view(-1, NEIGHBORS).argmax(-1) for mask in masks)
    add("GNNExplainer", classes, masks[0], agreement=(first == second).float().mean().item())
    add("soft attention, exact posterior", classes, exact_alignments(soft, *given)["neighbor"])
    classes, weights = predicted(exact, test)
    add("Marginal, prior", classes, weights)
    add("Marginal, exact posterior", classes, exact_alignments(exact, *given)["neighbor"])
    found["Marginal, exact posterior"]["step_ratio"] = _step_ratio(steps)
    return found, (test, shown)


def _step_ratio(steps: Mapping[str, Callable[[], None]]) -> float:
    """Time of a step under Marginal, divided by that of soft attention, in turns; it trains the networks on."""
    times = {name: list[float]() for name in ("Soft", "Marginal")}
    for _ in range(40):
        for name, found in times.items():
            start = time.perf_counter()
            steps[name]()
            found.append(time.perf_counter() - start)
    return median(times["Marginal"]) / median(times["Soft"])


@exclusive
def run(config: EdgesConfig) -> dict[str, float]:
    """Train and explain all networks, print the table, and write metrics, the picture, report and results/."""
    open_run(config.out or Path("runs", "reasons", "edges"), config, free=("results",))
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    picture: Any = None
    for level, flipped in FLIPPED.items():
        rows = runs.setdefault(level, {})
        for seed in range(config.seeds):
            found, shown = explain_seed(config, flipped, seed)
            picture = picture or shown
            for row, scores in found.items():
                rows.setdefault(row, []).append(scores)
            print(f"{level}, seed {seed}: done", flush=True)
    text = (
        f"Every node has a kind and a class, both seen through noise, and asks for one of {KINDS} kinds. One of its "
        f"{NEIGHBORS} neighbors is of that kind, and the node's label is that neighbor's class. Networks: one layer "
        f"of GATv2 attention, one head of width {HIDDEN}, and a linear map; {config.steps} steps of Adam on a graph of "
        f"{config.nodes} nodes. The weights with the best accuracy on a second graph, with labels as noisy, are kept, "
        f"and tested on a third one, whose labels are true. GNNExplainer and the posteriors know the label of the node "
        f"whose reason they look for; attention and the prior do not. PyG's explainers explain the soft network. "
        f"Explanations are divided by their sum over the edges of a node; GNNExplainer's masks are no probabilities, "
        f"and attention weights do not claim to be. Weibull: concentration 10, contextual prior, "
        f"KL weight .01 where nothing is said, 50 samples. "
        f"{closing(config.seeds, TOP_1, AUROC, ECE, AGREEMENT, STEP)}"
    )
    columns = (TOP_1, AUROC, ECE, ACCURACY, AGREEMENT, STEP)
    parts = [
        Part(text=text, rows=table("explained by", "training labels", runs, columns, TOP_1), labels=2),
        Part("One node and its edges", _CAPTION, picture=save(
            neighborhood(*picture), (config.results or RESULTS) / "pictures" / "causal_edges.png")),
    ]  # fmt: skip
    shares = {row: fmean(one["top_1"] for one in runs["true labels"][row]) for row in PICTURED}
    summary = (
        f"The exact posterior of Marginal() names the causal edge of {shares[PICTURED[-1]]:.1%} of nodes, GNNExplainer "
        f"that of {shares['GNNExplainer']:.1%}, soft attention that of {shares['soft attention']:.1%}."
    )
    report = Report("Which neighbor is the reason: graphs with one causal edge a node", "causal-edges", parts, summary)
    return publish(config, "edges", report, runs)


AGREEMENT = Column("agreement", "agreement", 3)
STEP = Column("step / soft", "step_ratio", 2)
_CAPTION = (
    "A node, its six neighbors, and the probability of each edge; the causal edge is red. Node of the first test "
    "graph at which soft attention is least sure of the causal edge, while the posterior names it."
)
PICTURED = ("soft attention", "GNNExplainer", "Marginal, prior", "Marginal, exact posterior")


def neighborhood(data: Data, shown: Mapping[str, Tensor]) -> Figure:
    """The edges of one node, as wide as they are probable, by several explanations."""
    at = {row: shown[row].gather(-1, data.cause.unsqueeze(-1)).squeeze(-1) for row in PICTURED}
    node = int(at["soft attention"].where(at["Marginal, exact posterior"] > 0.9, 2).argmin())
    figure, axes = panels(1, len(PICTURED), size=(11, 3.2))
    angles = torch.arange(NEIGHBORS) * (2 * torch.pi / NEIGHBORS) + torch.pi / 2
    for axis, row in zip(axes[0], PICTURED, strict=True):
        for number, (angle, p) in enumerate(zip(angles, shown[row][node].tolist(), strict=True)):
            x, y = float(angle.cos()), float(angle.sin())
            color = "#d1495b" if number == data.cause[node] else "#9aa5b1"
            axis.plot([0, x], [0, y], color=color, linewidth=0.6 + 11 * p, solid_capstyle="round", zorder=1)
            axis.plot(x, y, "o", markersize=16, color="white", markeredgecolor=color, markeredgewidth=2, zorder=2)
            axis.annotate(f"{p:.2f}", (1.34 * x, 1.34 * y), ha="center", va="center", fontsize=9)
        axis.plot(0, 0, "o", markersize=20, color="#1b6ca8", zorder=3)
        axis.set(title=row, xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], aspect="equal", frame_on=False)
        axis.title.set_fontsize(10)
    return figure


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
def run_graphs(config: GraphsConfig) -> dict[str, float]:
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
