"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from torch.utils.data import DataLoader

from experiments.datasets.graphs.load import GraphData
from experiments.files import write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.evaluation import definitions, evaluate, prediction_table
from experiments.graph.model import TrainedGraph, build, chosen_graph
from experiments.harness.training import Fitted, fit
from experiments.report.figures import panels, save
from experiments.run import Task, load_trained, run_and_show
from pyro_attention import Soft, predict, sample_posterior
from pyro_attention.plots import intervals, reliability

_SAMPLES = 200


class GraphTask(Task[GraphConfig, GraphData, TrainedGraph]):
    """Classes of nodes, on the graph that the options choose or on one of your own.

    Example:
        >>> from experiments.datasets.graphs.load import load_graph
        >>> from experiments.run import run
        >>> config = GraphConfig(max_epochs=200, out=Path("runs", "mine"))
        >>> run(GraphTask(load_graph("digits")), config)["test_attention_accuracy"]  # doctest: +SKIP
        0.96...
    """

    config = GraphConfig
    script = "experiments.graph"

    def __init__(self, graph: GraphData | None = None) -> None:
        self.graph = graph

    def folder(self, config: GraphConfig) -> str:
        named = config.dataset if config.graph is None else config.graph.stem
        name = named if self.graph is None else self.graph.name
        return f"graph/{name}-{config.guide}-{config.prior}-{config.seed}"

    def load(self, config: GraphConfig) -> GraphData:
        return chosen_graph(config) if self.graph is None else self.graph

    def build(self, config: GraphConfig, data: GraphData, folder: Path) -> TrainedGraph:  # noqa: ARG002
        return build(config, data)

    def fit(self, trained: TrainedGraph, data: GraphData, folder: Path) -> Fitted:  # noqa: ARG002
        config = trained.config
        # an epoch is one batch; a loader draws a seed, here from a generator that no noise depends on
        loaders = [
            DataLoader[Any]([(*trained.inputs, mask)], batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]
            for mask in (trained.data.train_mask, trained.data.val_mask)
        ]
        monitor: dict[str, Literal["min", "max"]] = {f"val_{trained.data.metric}": "max"}
        if config.monitor == "both":
            monitor["val_loss"] = "min"
        return fit(config, trained.module, *loaders, folder=folder, patience=config.patience, monitor=monitor)

    def evaluate(
        self, trained: TrainedGraph, data: GraphData, fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        metrics, logits = evaluate(trained, fitted)
        write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, logits=logits.cpu().numpy()))
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return definitions(metrics)

    def show(self, config: GraphConfig, metrics: Mapping[str, float], folder: Path) -> None:
        print(prediction_table(metrics), end="\n\n")
        trained = load_trained(self, config)
        for name, draw in (("reliability", draw_reliability), ("neighbourhood", draw_neighbourhood)):
            figure, ((axes,),) = panels(1, 1, size=(5, 4))
            draw(trained, axes)
            print(save(figure, folder / "figures" / f"{name}.png"))


train = partial(run_and_show, GraphTask())


def draw_reliability(trained: TrainedGraph, axes: Axes) -> None:
    """How honest the probabilities of the test nodes are."""
    data, soft = trained.data, isinstance(trained.guide.family("layers.0"), Soft)
    found = predict(
        trained.guide, *trained.inputs, noise="none" if soft else "attention", seed=trained.config.seed,
        num_samples=1 if soft else trained.config.num_samples, transform=lambda logits: logits.softmax(-1),
    )  # fmt: skip
    confidence, classes = found.mean[data.test_mask].max(-1)
    reliability(confidence, classes == data.labels[data.test_mask], axes=axes)


def draw_neighbourhood(trained: TrainedGraph, axes: Axes) -> None:
    """Posterior of the output layer's attention around the test node with the most mixed neighbourhood."""
    data, graph, node = trained.data, trained.graph, _mixed_node(trained)
    edges = (graph.targets.index == node).nonzero().squeeze(-1)
    samples = sample_posterior(trained.guide, *trained.inputs, num_samples=_SAMPLES, seed=trained.config.seed)
    weights = list(samples.values())[-1][:, edges].mean(-1).cpu()
    names = [f"{data.labels[one].item()}{' (itself)' * (one == node)}" for one in graph.sources.index[edges].tolist()]
    intervals(weights, names, axes=axes)
    axes.set(title=f"attention of test node {node} (class {data.labels[node]})", xlabel="class of the neighbour")


def _mixed_node(trained: TrainedGraph) -> int:
    """The test node (with 6 to 14 neighbours, if there is one) whose neighbours' classes have the largest entropy."""
    data, graph = trained.data, trained.graph
    classes = torch.nn.functional.one_hot(data.labels, data.num_classes).float()
    counts = graph.targets.sum(classes[graph.sources.index])
    degree = counts.sum(-1)
    entropy = torch.special.entr(counts / degree.clamp(min=1).unsqueeze(-1)).sum(-1)
    suitable = data.test_mask & (degree >= 7) & (degree <= 15)
    return int(entropy.masked_fill(~(suitable if suitable.any() else data.test_mask), -1).argmax())
