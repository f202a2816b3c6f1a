"""Checkpoints that survive whatever stops a run: files that are whole or not there, at the end of an epoch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from experiments.files import reading, write_atomic
from experiments.harness.callbacks import EarlyStopping
from experiments.harness.weights import AGAIN, write_weights

__all__ = ["AtomicCheckpointIO", "Checkpoints", "read_run"]

# Between two checkpoints of a run that names no number of epochs: short epochs stay short, long ones are all kept.
SECONDS = 5.0


def read_run(path: Path, *, map_location: Any = "cpu") -> dict[str, Any]:
    """Read last.ckpt, the whole state of a training; DamagedFileError where it is missing, damaged or none of ours."""
    with reading(path, "a checkpoint of this program", AGAIN):
        checkpoint = dict(torch.load(path, map_location=map_location, weights_only=True))
        # Lightning would go on without them
        needed = {"epoch", "EarlyStopping", "History", "RandomState"}
        if missing := needed - checkpoint.keys() - checkpoint["callbacks"].keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        if not checkpoint["optimizer_states"]:
            raise ValueError("it has no state of an optimizer")
        return checkpoint


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint files that are complete or not there, and that are read without unpickling objects."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Any = True) -> dict[str, Any]:  # noqa: ARG002
        return read_run(Path(path), map_location=map_location)


class Checkpoints(Checkpoint):
    """Writes last.ckpt (the whole run) and best.safetensors (weights) as the training goes on, and at its end.

    With no number of epochs between two checkpoints, one comes after the first epoch and after every epoch that ends
    five seconds or more after the last checkpoint. Lightning's own callback counts either epochs or seconds, and
    checkpoints in the middle of an epoch do not resume to the same numbers.
    """

    def __init__(self, folder: Path, stopping: EarlyStopping, *, every: int | None = None) -> None:
        self.folder, self.last = folder, folder / "checkpoints" / "last.ckpt"
        self.stopping, self.every = stopping, every
        self.started = False  # the training has begun, everything is restored
        self._written = -float("inf")
        self._best_epoch = -1

    def on_train_start(self, *_: Any) -> None:
        self.started = True

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        epochs = trainer.current_epoch + 1
        due = epochs % self.every == 0 if self.every else time.monotonic() - self._written >= SECONDS
        # several ranks have several clocks
        if trainer.strategy.reduce_boolean_decision(
            due or trainer.should_stop or epochs == trainer.max_epochs, all=False
        ):
            self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        stopping = self.stopping
        if stopping.best_epoch > self._best_epoch and trainer.is_global_zero:
            write_weights(self.folder, stopping.weights, epoch=stopping.best_epoch)
            self._best_epoch = stopping.best_epoch
        trainer.save_checkpoint(self.last)
        self._written = time.monotonic()
