"""Pictures of trained graph attention networks: how honest their confidence is, and whom a node attends to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.graph.model import TrainedGraph
from experiments.report.figures import panels
from pyro_attention import Soft, predict, sample_posterior
from pyro_attention.posterior.predictive import Noise

SAME, OTHER, SELF = "#1b6ca8", "#d1495b", "#6b7280"
_SAMPLES = 200


def calibration_panels(name: str, trained: TrainedGraph) -> dict[str, tuple[Tensor, Tensor]]:
    """Probabilities and labels of the test nodes, for a reliability diagram; of soft attention MC dropout's too."""
    config, data = trained.config, trained.data

    def probabilities(noise: Noise) -> tuple[Tensor, Tensor]:
        prediction = predict(
            trained.guide, *trained.inputs, noise=noise, num_samples=1 if noise == "none" else config.num_samples,
            transform=lambda logits: logits.softmax(-1), seed=config.seed,
        )  # fmt: skip
        return prediction.mean[data.test_mask].cpu(), data.labels[data.test_mask].cpu()

    if isinstance(trained.guide.family("layers.0"), Soft):
        return {name: probabilities("none"), f"{name} + MC dropout": probabilities("dropout")}
    return {name: probabilities("attention")}


def attention_figure(trained: TrainedGraph) -> Figure:
    """Posterior of the output layer's attention around the test node with the most mixed neighbourhood."""
    data, graph, node = trained.data, trained.graph, _mixed_node(trained)
    edges = (graph.targets.index == node).nonzero().squeeze(-1)
    samples = sample_posterior(trained.guide, *trained.inputs, num_samples=_SAMPLES, seed=trained.config.seed)
    weights, label = list(samples.values())[-1][:, edges].mean(-1).cpu(), data.labels[node].item()
    neighbours = graph.sources.index[edges].tolist()
    figure = neighbourhood(weights, node=node, neighbours=neighbours, labels=data.labels.cpu())
    figure.suptitle(f"Output layer's attention of test node {node} (class {label}), {_SAMPLES} samples", fontsize=11)
    return figure


def _mixed_node(trained: TrainedGraph) -> int:
    """The test node (with 6 to 14 neighbours, if there is one) whose neighbours' classes have the largest entropy."""
    data, graph = trained.data, trained.graph
    classes = torch.nn.functional.one_hot(data.labels, data.num_classes).float()
    counts = graph.targets.sum(classes[graph.sources.index])
    degree = counts.sum(-1)
    entropy = torch.special.entr(counts / degree.clamp(min=1).unsqueeze(-1)).sum(-1)
    suitable = data.test_mask & (degree >= 7) & (degree <= 15)
    return int(entropy.masked_fill(~(suitable if suitable.any() else data.test_mask), -1).argmax())


def neighbourhood(samples: Tensor, *, node: int, neighbours: Sequence[int], labels: Tensor) -> Figure:
    """Whom a node attends to: mean weight and 90 % credible interval of every edge.

    The samples ``[S, edges]`` are those of the node's in-edges, which come from the neighbours and the node itself;
    labels ``[N]`` are of all nodes.
    """
    order = samples.mean(0).argsort(descending=True)
    samples, neighbours = samples[:, order], [neighbours[place] for place in order]
    mean = samples.mean(0).numpy()
    low, high = np.quantile(samples.numpy(), (0.05, 0.95), axis=0)
    colours = [SELF if n == node else SAME if labels[n] == labels[node] else OTHER for n in neighbours]
    figure, ((axis,),) = panels(1, 1, size=(6, 0.6 + 0.42 * max(6, len(neighbours))))
    rows = np.arange(len(neighbours))
    axis.barh(rows, mean, color=colours, alpha=0.35, height=0.7)
    errors = np.stack([mean - low, high - mean]).clip(min=0)
    axis.errorbar(mean, rows, xerr=errors, fmt="o", markersize=3, color="0.15", capsize=2, linewidth=1.2)
    axis.axvline(1 / len(neighbours), color="0.5", linestyle=":", linewidth=1, label="uniform")
    axis.legend(frameon=False, fontsize=8)
    axis.set_yticks(rows, ["itself" if n == node else f"{labels[n].item()}" for n in neighbours], fontsize=9)
    axis.invert_yaxis()
    axis.set(xlabel="attention weight: mean and 90 % credible interval", ylabel="class of the neighbour")
    return figure
