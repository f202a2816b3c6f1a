"""Node classification by a graph attention network with latent attention weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from experiments.files import user_errors, write_atomic
from experiments.graph.config import GraphConfig
from experiments.graph.data import noise_edges
from experiments.graph.evaluation import DEFINITIONS, evaluate, prediction_table
from experiments.graph.figures import attention_figure, calibration_panels
from experiments.graph.model import build, load_trained, run_folder
from experiments.harness.extension import open_training
from experiments.harness.folder import exclusive
from experiments.harness.results import write_environment, write_metrics
from experiments.harness.training import fit
from experiments.reporting.figures import reliability_diagram, save

__all__ = ["GraphConfig", "load_trained", "run", "run_and_show", "run_folder"]


class _FullBatch:
    """A data loader of one batch."""

    def __init__(self, *batch: object) -> None:
        self.batch = batch

    def __iter__(self) -> Iterator[tuple[object, ...]]:
        yield self.batch

    def __len__(self) -> int:
        return 1


@exclusive
def run(config: GraphConfig) -> dict[str, float]:
    """Train, evaluate and save; what is in the folder already is not computed again when resuming.

    Returns:
        The numbers of metrics.json; ``experiments.graph.evaluation.DEFINITIONS`` says what they are.

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
    write_environment(folder, trained.device)
    fitted = fit(
        config,
        trained.module,
        _FullBatch(*trained.inputs, trained.data.train_mask),
        _FullBatch(*trained.inputs, trained.data.val_mask),
        folder=folder,
        patience=config.patience,
        monitor={"val_accuracy": "max", "val_loss": "min"},
    )
    evaluation = evaluate(
        trained.module, trained.inputs, trained.data, fitted,
        num_samples=config.num_samples, seed=config.seed, added_edges=noise_edges(config, trained.data, trained.graph),
    )  # fmt: skip
    logits = evaluation.logits.cpu().numpy()
    write_atomic(folder / "predictions.npz", lambda file: np.savez_compressed(file, logits=logits))
    write_metrics(folder, evaluation.metrics, {name: DEFINITIONS[name] for name in evaluation.metrics})
    return evaluation.metrics


def run_and_show(config: GraphConfig) -> None:
    """The script: table on the terminal, pictures in the folder."""
    print(prediction_table(run(config)), end="\n\n")
    trained, folder = load_trained(config), run_folder(config)
    parts = trained.guide, trained.inputs, trained.data
    panels = calibration_panels(config.guide, *parts, num_samples=config.num_samples, seed=config.seed)
    attention, _ = attention_figure(*parts, seed=config.seed)
    print(save(reliability_diagram(panels), folder / "figures" / "reliability.png"))
    print(f"{save(attention, folder / 'figures' / 'neighbourhood.png')}\n\nsaved in {folder}")
