"""Graphs where one neighbor of each node is the reason for its label."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import one_hot

from experiments.files import reading, write_atomic
from experiments.reasons.config import ReasonConfig
from experiments.reasons.network import HIDDEN, NodeData, Reader, accuracy, explain_by_pyg, predicted, train
from experiments.reasons.scores import named, reason_scores
from experiments.report.figures import panels
from pyro_attention import (
    AlignmentPrior,
    AttentionGuide,
    ContextualGammaPrior,
    Marginal,
    Soft,
    Weibull,
    exact_alignments,
    predict,
    sample_posterior,
)
from pyro_attention.families.base import Family

KINDS, CLASSES, NEIGHBORS, WIDTH = 4, 5, 6, 8
NOISE = {"kind": 0.34, "class": 0.28}  # standard deviation of each feature
_EXPLANATIONS = "explanations.npz"


@dataclass(frozen=True, kw_only=True)
class CausalGraph(NodeData):
    """Graph whose node i is the target of the edges 6 i to 6 i + 5, of which the ``cause[i]``-th is the reason."""

    cause: Tensor  # [N], from 0 to 5


class Graphs(NamedTuple):
    """Graphs to train on, to choose the weights on, and to test on."""

    train: CausalGraph
    valid: CausalGraph
    test: CausalGraph


def make_graph(nodes: int, *, flipped: float, seed: int) -> CausalGraph:
    """Draw a graph in which a node asks for a kind, and its label is the class of its one neighbor of that kind.

    Kind and class of a node are observed with noise. Flipped labels are drawn anew, all classes alike.
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
    return CausalGraph(torch.cat([*features, one_hot(asked, KINDS)], -1), edges, y, cause=cause)


def load(config: ReasonConfig) -> Graphs:
    """Draw the graphs of a seed; the labels of the test graph are true."""
    return Graphs(
        train=make_graph(config.nodes, flipped=config.flipped, seed=config.seed),
        valid=make_graph(config.nodes, flipped=config.flipped, seed=2000 + config.seed),
        test=make_graph(config.nodes, flipped=0.0, seed=1000 + config.seed),
    )


def network(config: ReasonConfig) -> tuple[Reader, Family]:
    """Build the untrained network of a seed, and the family of its attention."""
    torch.manual_seed(config.seed)
    drawn = config.guide == "weibull"
    prior = ContextualGammaPrior(HIDDEN, 1) if drawn else AlignmentPrior()
    model = Reader(prior, width=2 * WIDTH + KINDS, classes=CLASSES, mixes=config.guide == "marginal")
    return model, {"soft": Soft(), "weibull": Weibull(10.0), "marginal": Marginal()}[config.guide]


def score(config: ReasonConfig, data: Graphs, folder: Path) -> dict[str, float]:
    """Train a network, put its explanations of the test graph into the folder, and return their scores."""
    model, family = network(config)
    kl_weight = config.kl_weight if config.guide == "weibull" else 1.0
    step = train(model, family, data.train, data.valid, steps=config.steps, kl_weight=kl_weight)
    probabilities, explanations, metrics = explain(config, model, family, data.test)
    shares = {}
    for kind, weights in explanations.items():
        of_node = weights.view(-1, NEIGHBORS)
        shares[kind] = of_node / of_node.sum(-1, keepdim=True)
        metrics |= named(kind, reason_scores(shares[kind], data.test.cause))
    if config.guide == "marginal":
        metrics["posterior_step_ratio"] = _step_ratio(step, config, data)
    arrays: dict[str, Any] = {"cause": data.test.cause.numpy()} | {
        kind: share.numpy() for kind, share in shares.items()
    }
    write_atomic(folder / _EXPLANATIONS, lambda file: np.savez_compressed(file, **arrays))
    return metrics | {"accuracy": accuracy(probabilities, data.test)}


def explain(
    config: ReasonConfig, model: Reader, family: Family, test: CausalGraph
) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """Return probabilities of the classes, explanations ``[edges]`` by their kind, and further metrics of these."""
    inputs = (test.x, test.graph, test.y)
    if config.guide == "weibull":
        guide, draws = AttentionGuide(model, family), {"num_samples": 50, "seed": 0}
        mean = predict(guide, *inputs, transform=lambda logits: logits.softmax(-1), **draws).mean  # type: ignore[arg-type]
        samples = sample_posterior(guide, *inputs, **draws)["neighbor"]  # type: ignore[arg-type]
        return mean, {"mean": samples.mean(0)}, {}
    probabilities, weights = predicted(model, test)
    explanations, metrics = {"mean": weights}, dict[str, float]()
    if config.guide == "soft":
        from torch_geometric.explain import AttentionExplainer, GNNExplainer

        explanations["attention_explainer"] = explain_by_pyg(model, test, AttentionExplainer(), "model")
        masks = []
        for again in range(2):
            torch.manual_seed(10 * config.seed + again)
            masks.append(explain_by_pyg(model, test, GNNExplainer(epochs=config.explainer_epochs), "phenomenon"))
        explanations["gnn_explainer"] = masks[0]
        first, second = (mask.view(-1, NEIGHBORS).argmax(-1) for mask in masks)
        metrics["gnn_explainer_agreement"] = (first == second).float().mean().item()
    explanations["posterior"] = exact_alignments(model, *inputs)["neighbor"]
    return probabilities, explanations, metrics


def _step_ratio(step: Callable[[], None], config: ReasonConfig, data: Graphs) -> float:
    """Return the processor time of a step, which trains on, divided by that of soft attention; the two take turns."""
    soft = ReasonConfig(guide="soft", nodes=config.nodes, seed=config.seed)
    soft_step = train(*network(soft), data.train, data.valid, steps=1)
    times: Mapping[Callable[[], None], list[float]] = {soft_step: [], step: []}
    for _ in range(40):
        for timed, seconds in times.items():
            start = time.process_time()  # other work on the machine changes it less than a clock
            timed()
            seconds.append(time.process_time() - start)
    return median(times[step]) / median(times[soft_step])


def read_explanations(folder: Path) -> dict[str, Tensor]:
    """Read what :func:`score` has put into the folder of a run: explanations ``[N, 6]`` by their kind, and ``cause``.

    Raises:
        DamagedFileError: The file is missing or damaged.
    """
    path = folder / _EXPLANATIONS
    remedy = "remove the folder, and the same command with --resume makes it again"
    with reading(path, "explanations of a graph", remedy), np.load(path, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def neighborhood(shares: Mapping[str, Tensor], cause: Tensor) -> Figure:
    """Draw the edges of one node, as wide as they are probable, by several explanations.

    It is the node at which the first explanation is least sure of the causal edge while the last one names it.

    Args:
        shares: Probabilities of the edges of every node ``[N, 6]`` by the name of the explanation.
        cause: The edge that is the reason ``[N]``.
    """
    of_cause = [share.gather(-1, cause.unsqueeze(-1)).squeeze(-1) for share in shares.values()]
    node = int(of_cause[0].where(of_cause[-1] > 0.9, 2).argmin())
    figure, axes = panels(1, len(shares), size=(11, 3.2))
    angles: Any = torch.arange(NEIGHBORS) * (2 * torch.pi / NEIGHBORS) + torch.pi / 2
    for axis, (name, share) in zip(axes[0], shares.items(), strict=True):
        for number, (angle, p) in enumerate(zip(angles, share[node].tolist(), strict=True)):
            x, y = float(angle.cos()), float(angle.sin())
            color = "#d1495b" if number == cause[node] else "#9aa5b1"
            axis.plot([0, x], [0, y], color=color, linewidth=0.6 + 11 * p, solid_capstyle="round", zorder=1)
            axis.plot(x, y, "o", markersize=16, color="white", markeredgecolor=color, markeredgewidth=2, zorder=2)
            axis.annotate(f"{p:.2f}", (1.34 * x, 1.34 * y), ha="center", va="center", fontsize=9)
        axis.plot(0, 0, "o", markersize=20, color="#1b6ca8", zorder=3)
        axis.set(title=name, xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], aspect="equal", frame_on=False)
        axis.title.set_fontsize(10)
    return figure
