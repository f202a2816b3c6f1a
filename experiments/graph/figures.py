"""Pictures of trained graph attention networks: how honest their confidence is, and whom a node attends to."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor

from experiments.datasets.graphs.load import GraphData
from experiments.graph.model import TrainedGraph
from pyro_attention import EdgeList, Soft, predict, sample_posterior
from pyro_attention.posterior.predictive import Noise

__all__ = ["attention_figure", "calibration_panels", "neighbourhood"]

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


def attention_figure(trained: TrainedGraph) -> tuple[Figure, str]:
    """Posterior of the output layer's attention around the test node with the most mixed neighbourhood; its caption."""
    data, graph = trained.data, trained.graph
    node = _mixed_node(data, graph)
    sources, targets = graph.sources.index.cpu(), graph.targets.index.cpu()
    edges = (targets == node).nonzero().squeeze(-1)
    samples = sample_posterior(trained.guide, *trained.inputs, num_samples=_SAMPLES, seed=trained.config.seed)
    labels = data.labels.cpu()
    figure = neighbourhood(
        list(samples.values())[-1][:, edges].mean(-1).cpu(),
        node=node,
        neighbours=sources[edges].tolist(),
        images=None if data.images is None else data.images.cpu(),
        labels=labels,
        title=f"Output layer's attention of test node {node} (class {labels[node].item()}), {_SAMPLES} samples",
    )
    text = (
        f"Test node {node} of class {labels[node].item()}, with the most mixed neighbourhood (of those with about 6 to "
        f"14 neighbours, where there are such nodes). Lines are as thick as the mean weight; bars show mean and 90 % "
        f"credible interval."
    )
    return figure, text


def _mixed_node(data: GraphData, graph: EdgeList) -> int:
    """The test node (with 6 to 14 neighbours, if there is one) whose neighbours' classes have the largest entropy."""
    classes = torch.nn.functional.one_hot(data.labels, data.num_classes).float()
    counts = graph.targets.sum(classes[graph.sources.index])
    degree = counts.sum(-1)
    entropy = torch.special.entr(counts / degree.clamp(min=1).unsqueeze(-1)).sum(-1)
    suitable = data.test_mask & (degree >= 7) & (degree <= 15)
    if not suitable.any():
        suitable = data.test_mask
    return int(entropy.masked_fill(~suitable, -1).argmax())


def neighbourhood(
    samples: Tensor, *, node: int, neighbours: Sequence[int], images: Tensor | None, labels: Tensor, title: str
) -> Figure:
    """A node and whom it attends to: mean weight and 90 % credible interval of every edge.

    The samples ``[S, edges]`` are those of the node's in-edges, which come from the neighbours and the node itself;
    labels ``[N]`` and images ``[N, height, width]`` are of all nodes. Without images numbers are shown.
    """
    mean = samples.mean(0)
    order = mean.argsort(descending=True)
    mean, neighbours = mean[order], [neighbours[i] for i in order]
    tails = torch.tensor([0.05, 0.95], dtype=samples.dtype)
    low, high = samples[:, order].quantile(tails, dim=0)
    colours = [SELF if n == node else SAME if labels[n] == labels[node] else OTHER for n in neighbours]
    figure = Figure(figsize=(11, 0.6 + 0.42 * max(10, len(neighbours))), layout="constrained")
    wheel, bars = figure.subplots(1, 2, width_ratios=[1, 1.15])
    _wheel(wheel, mean, neighbours, colours, node, images)
    rows = np.arange(len(neighbours))
    bars.barh(rows, mean.numpy(), color=colours, alpha=0.35, height=0.7)
    errors = torch.stack([mean - low, high - mean]).clamp(min=0)
    bars.errorbar(
        mean.numpy(), rows, xerr=errors.numpy(), fmt="o", markersize=3, color="0.15", capsize=2, linewidth=1.2
    )
    bars.axvline(1 / len(neighbours), color="0.5", linestyle=":", linewidth=1)
    bars.annotate("uniform", (1 / len(neighbours), -0.9), fontsize=8, color="0.4", ha="center", annotation_clip=False)
    names = ["itself" if n == node else f"{labels[n].item()}" for n in neighbours]
    bars.set_yticks(rows, names, fontsize=9)
    bars.invert_yaxis()
    bars.set(xlabel="attention weight: mean and 90 % credible interval", ylabel="class of the neighbour")
    bars.spines[["top", "right"]].set_visible(False)
    for label, colour in (("same class", SAME), ("other class", OTHER), ("itself", SELF)):
        wheel.plot([], [], color=colour, linewidth=6, alpha=0.5, label=label)
    wheel.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3)
    figure.suptitle(title, fontsize=11)
    return figure


def _wheel(
    axis: Axes, mean: Tensor, neighbours: Sequence[int], colours: Sequence[str], node: int, images: Tensor | None
) -> None:
    """The node in the middle, its neighbours around it, lines as thick as the mean weights."""
    around = [i for i, n in enumerate(neighbours) if n != node]
    scale = 14 / mean.max().item()
    for place, i in enumerate(around):
        angle = np.pi / 2 - 2 * np.pi * place / len(around)
        x, y = np.cos(angle), np.sin(angle)
        axis.plot([0, x], [0, y], color=colours[i], linewidth=scale * mean[i].item(), alpha=0.45, zorder=1)
        _picture(axis, neighbours[i], (x, y), images, colours[i], zoom=3.2)
    _picture(axis, node, (0.0, 0.0), images, SELF, zoom=4.6)
    axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    axis.axis("off")


def _picture(
    axis: Axes, node: int, place: tuple[float, float], images: Tensor | None, colour: str, zoom: float
) -> None:
    if images is None:
        axis.annotate(str(node), place, ha="center", va="center", fontsize=8, bbox={"fc": "white", "ec": colour})
        return
    picture = OffsetImage(images[node].numpy(), cmap=matplotlib.colormaps["gray_r"], zoom=zoom)
    axis.add_artist(AnnotationBbox(picture, place, pad=0.15, bboxprops={"edgecolor": colour, "linewidth": 2}))
