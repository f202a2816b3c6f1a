"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.data import DataLoader

from experiments.datasets.graphs.load import GraphData
from experiments.files import write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.evaluation import definitions, evaluate, prediction_table
from experiments.graph.model import TrainedGraph, build, check_same_graph, chosen_graph
from experiments.harness.training import Fitted, fit
from experiments.report.figures import panels, reliability_diagram, save
from experiments.run import Task, load_trained, run_and_show
from pyro_attention import Soft, predict, sample_posterior
from pyro_attention.posterior.predictive import Noise

SAME, OTHER, SELF = "#1b6ca8", "#d1495b", "#6b7280"
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

    def build(self, config: GraphConfig, data: GraphData, folder: Path) -> TrainedGraph:
        check_same_graph(data, folder)
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
        diagram = reliability_diagram(calibration_panels(config.guide, trained))
        for name, figure in (("reliability", diagram), ("neighbourhood", attention_figure(trained))):
            print(save(figure, folder / "figures" / f"{name}.png"))


train = partial(run_and_show, GraphTask())


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
