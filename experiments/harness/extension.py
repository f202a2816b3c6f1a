"""Trainings that go on for more epochs than they were first asked for."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from experiments.files import UserError
from experiments.harness.checkpoints import read_run
from experiments.harness.folder import open_run, saved_options
from experiments.harness.results import read_metrics

__all__ = ["open_training"]


def open_training(folder: Path, config: Any, *, planned: bool = False) -> dict[str, float] | None:
    """:func:`open_run` for a training whose ``max_epochs`` may be larger than before.

    It ends with the same numbers as a training that was started with so many. Not so one whose learning rate is
    ``planned`` over all epochs, which would be another from the first step on: its number of epochs stays.

    Returns:
        The metrics of a run that has all epochs that are asked for or stopped early; None when there is something to
        train.

    Raises:
        UserError: As :func:`open_run`, or the run has more epochs than are asked for.
    """
    if planned:
        open_run(folder, config)
        return read_metrics(folder)
    metrics = read_metrics(folder) if config.resume else None
    epochs = None if metrics is None else metrics.get("epochs", 0.5)
    if epochs is not None and not (math.isfinite(epochs) and epochs == int(epochs)):
        raise UserError(
            f"{folder / 'metrics.json'} tells no number of epochs; remove it, and the same command makes it again"
        )
    if epochs is not None and epochs > config.max_epochs:
        raise UserError(
            f"{folder} holds a run of {epochs} epochs, and max_epochs is {config.max_epochs}; pass --max-epochs "
            f"{epochs} or more, choose another --out, or pass --overwrite to train again"
        )
    before = saved_options(folder).get("max_epochs") if (folder / "config.yaml").is_file() else None
    # config.yaml is written again for another number of epochs alone: a finished run may lie where nobody may write
    open_run(folder, config, free=("max_epochs",) if before not in (None, config.max_epochs) else ())
    if epochs is None or epochs == config.max_epochs:
        return metrics
    last = folder / "checkpoints" / "last.ckpt"
    # a finished run may do without its checkpoint, unless it is to go on
    finished = before == config.max_epochs and not last.exists()
    if finished or read_run(last)["callbacks"]["EarlyStopping"]["waited"] >= config.patience:
        if config.progress:
            print(f"{folder} stopped early, after {epochs} epochs; more of them change nothing", file=sys.stderr)
        return metrics
    (folder / "metrics.json").unlink()
    return None
