"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from experiments.files import user_errors, write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.evaluation import DEFINITIONS, evaluate, prediction_table
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.graph.model import build, load_trained, run_folder
from experiments.harness.extension import open_training
from experiments.harness.folder import exclusive
from experiments.harness.results import write_metrics
from experiments.harness.training import fit
from experiments.reporting.figures import reliability_diagram, save

__all__ = ["GraphConfig", "load_trained", "run", "run_and_show", "run_folder"]


@exclusive
def run(config: GraphConfig) -> dict[str, float]:
    """Train, evaluate and save what the folder does not hold yet: the numbers of metrics.json.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; ``resume`` continues.
    """
    folder = run_folder(config)
    with user_errors(ValueError, OSError):
        trained = build(config)
        metrics = open_training(folder, config)
    if metrics is not None:
        return metrics
    # an epoch is one batch; a loader draws a seed, here from a generator that no noise depends on
    train_data, val_data = (
        DataLoader[Any]([(*trained.inputs, mask)], batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]
        for mask in (trained.data.train_mask, trained.data.val_mask)
    )
    monitor: dict[str, Literal["min", "max"]] = {"val_accuracy": "max", "val_loss": "min"}
    fitted = fit(config, trained.module, train_data, val_data, folder=folder, patience=config.patience, monitor=monitor)
    metrics, logits = evaluate(trained, fitted)
    write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, logits=logits.cpu().numpy()))
    write_metrics(folder, metrics, DEFINITIONS)
    return metrics


def run_and_show(config: GraphConfig) -> None:
    """The script: table on the terminal, pictures in the folder."""
    print(prediction_table(run(config)), end="\n\n")
    trained, folder = load_trained(config), run_folder(config)
    panels, (attention, _) = calibration_panels(config.guide, trained), attention_figure(trained)
    print(save(reliability_diagram(panels), folder / "figures" / "reliability.png"))
    print(f"{save(attention, folder / 'figures' / 'neighbourhood.png')}\n\nsaved in {folder}")
