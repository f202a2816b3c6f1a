"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from experiments.datasets.graphs.load import GraphData
from experiments.files import write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.evaluation import definitions, evaluate, prediction_table
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.graph.model import TrainedGraph, build, check_same_graph, chosen_graph
from experiments.harness.training import Fitted, fit
from experiments.report.figures import reliability_diagram, save
from experiments.run import Task, load_trained, run_and_show


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
