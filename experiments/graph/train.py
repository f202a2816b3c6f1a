"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from experiments.datasets.graphs.load import GraphData
from experiments.files import user_errors, write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.data import check_same_graph, chosen_graph
from experiments.graph.evaluation import definitions, evaluate, prediction_table
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.graph.model import TrainedGraph, build, load_trained, run_folder
from experiments.harness.folder import exclusive, open_training
from experiments.harness.results import write_metrics
from experiments.harness.training import fit as fit_module
from experiments.harness.training import load_best
from experiments.report.figures import reliability_diagram, save

__all__ = ["GraphConfig", "GraphFit", "fit", "load_trained", "run", "run_and_show", "run_folder"]


@dataclass(frozen=True)
class GraphFit:
    """What :func:`fit` returns."""

    metrics: dict[str, float]  # explained in metrics.json
    trained: TrainedGraph  # network and guide at the best epoch, with the graph and the inputs
    folder: Path


@exclusive
def fit(graph: GraphData, config: GraphConfig) -> GraphFit:
    """Train a graph attention network on a graph of your own, and evaluate its best epoch on the test nodes.

    The options ``graph``, ``dataset``, ``data_root`` and ``split_seed``, which choose a graph, are not used; all others
    are. What the folder ``config.out`` holds of this run already is read with ``resume``, and not trained again; the
    graph has to be the one that the run was begun with, of which graph.json in the folder has the checksums.

    Raises:
        UserError: Graph, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.

    Example:
        >>> from experiments.datasets.graphs.load import load_graph
        >>> config = GraphConfig(max_epochs=200, out=Path("runs", "mine"))
        >>> found = fit(load_graph("digits"), config)  # doctest: +SKIP
        >>> found.metrics["test_attention_accuracy"]  # doctest: +SKIP
        0.96...
    """
    folder = run_folder(config, graph.name)
    metrics, trained = _opened(graph, config, folder)
    if metrics is None:
        return GraphFit(_train(trained, folder), trained, folder)
    with user_errors(ValueError, OSError):
        load_best(trained.module, folder)
    return GraphFit(metrics, trained, folder)


@exclusive
def run(config: GraphConfig) -> dict[str, float]:
    """Train, evaluate and save what the folder does not hold yet: the numbers of metrics.json.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    with user_errors(ValueError, OSError):
        graph = chosen_graph(config)
    metrics, trained = _opened(graph, config, run_folder(config))
    return _train(trained, run_folder(config)) if metrics is None else metrics


def _opened(graph: GraphData, config: GraphConfig, folder: Path) -> tuple[dict[str, float] | None, TrainedGraph]:
    """What the folder, which is opened, has of the run's metrics, and the untrained network."""
    with user_errors(ValueError, OSError):
        trained = build(config, graph)
        metrics = open_training(folder, config)
    check_same_graph(graph, folder)
    return metrics, trained


def _train(trained: TrainedGraph, folder: Path) -> dict[str, float]:
    """Train the network, and leave metrics and predictions in the folder."""
    config = trained.config
    # an epoch is one batch; a loader draws a seed, here from a generator that no noise depends on
    train_data, val_data = (
        DataLoader[Any]([(*trained.inputs, mask)], batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]
        for mask in (trained.data.train_mask, trained.data.val_mask)
    )
    monitor: dict[str, Literal["min", "max"]] = {f"val_{trained.data.metric}": "max"}
    if config.monitor == "both":
        monitor["val_loss"] = "min"
    fitted = fit_module(
        config, trained.module, train_data, val_data, folder=folder, patience=config.patience, monitor=monitor
    )
    metrics, logits = evaluate(trained, fitted)
    write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, logits=logits.cpu().numpy()))
    write_metrics(folder, metrics, definitions(metrics))
    return metrics


def run_and_show(config: GraphConfig) -> None:
    """The script: table on the terminal, pictures in the folder."""
    print(prediction_table(run(config)), end="\n\n")
    trained, folder = load_trained(config), run_folder(config)
    panels, (attention, _) = calibration_panels(config.guide, trained), attention_figure(trained)
    print(save(reliability_diagram(panels), folder / "figures" / "reliability.png"))
    print(f"{save(attention, folder / 'figures' / 'neighbourhood.png')}\n\nsaved in {folder}")
