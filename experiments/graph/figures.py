"""Pictures of trained graph attention networks, from their run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from experiments.graph.config import GraphConfig
from experiments.graph.model import TrainedGraph, load_trained
from experiments.reporting import figures
from pyro_attention import predict, sample_posterior

__all__ = ["AttentionFigure", "attention_figure", "calibration_figure"]


@dataclass(frozen=True)
class AttentionFigure:
    """A picture and what it shows.

    Attributes:
        path: The PNG file.
        text: A caption.
    """

    path: Path
    text: str


def calibration_figure(runs: Mapping[str, GraphConfig], path: Path) -> Path:
    """Reliability diagram of the test nodes, one panel a finished run; MC dropout of the soft run beside it."""
    panels = {}
    for name, config in runs.items():
        trained = load_trained(config)
        soft = config.guide == "soft"
        panels[name] = _probabilities(trained, "none" if soft else "attention", config)
        if soft:
            panels[f"{name} + MC dropout"] = _probabilities(trained, "dropout", config)
    return figures.save(figures.reliability_diagram(panels), path)


def _probabilities(
    trained: TrainedGraph, noise: Literal["attention", "dropout", "none"], config: GraphConfig
) -> tuple[Tensor, Tensor]:
    mask = trained.data.test_mask
    prediction = predict(
        trained.guide, *trained.inputs, noise=noise, num_samples=1 if noise == "none" else config.num_samples,
        transform=lambda logits: logits.softmax(-1), seed=config.seed,
    )  # fmt: skip
    return prediction.mean[mask].cpu(), trained.data.labels[mask].cpu()


def attention_figure(config: GraphConfig, path: Path, *, num_samples: int = 200) -> AttentionFigure:
    """Posterior of the output layer's attention around the test node with the most mixed neighbourhood."""
    trained = load_trained(config)
    node = _mixed_node(trained)
    sources, targets = trained.graph.sources.index.cpu(), trained.graph.targets.index.cpu()
    edges = (targets == node).nonzero().squeeze(-1)
    samples = sample_posterior(trained.guide, *trained.inputs, num_samples=num_samples, seed=config.seed)
    weights = samples["layers.1"][:, edges].mean(-1).cpu()
    labels = trained.data.labels.cpu()
    figure = figures.neighbourhood(
        weights,
        node=node,
        neighbours=sources[edges].tolist(),
        images=None if trained.data.images is None else trained.data.images.cpu(),
        labels=labels,
        title=f"Output layer's attention of test node {node} (class {labels[node].item()}), {num_samples} samples",
    )
    text = (
        f"Test node {node} of class {labels[node].item()}, the one with the most mixed neighbourhood among those with "
        f"6 to 14 neighbours. Lines are as thick as the mean weight; bars show mean and 90 % credible interval."
    )
    return AttentionFigure(figures.save(figure, path), text)


def _mixed_node(trained: TrainedGraph) -> int:
    """The test node (with 6 to 14 neighbours, if there is one) whose neighbours' classes have the largest entropy."""
    data, targets, sources = trained.data, trained.graph.targets, trained.graph.sources
    classes = torch.nn.functional.one_hot(data.labels, data.num_classes).float()
    counts = targets.sum(classes[sources.index])
    degree = counts.sum(-1)
    entropy = torch.special.entr(counts / degree.unsqueeze(-1)).sum(-1)
    suitable = data.test_mask & (degree >= 7) & (degree <= 15)
    if not suitable.any():
        suitable = data.test_mask
    return int(entropy.masked_fill(~suitable, -1).argmax())
