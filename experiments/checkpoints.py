"""Checkpoints that survive whatever stops a run, and what Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from experiments.callbacks import EarlyStopping
from experiments.results import UserError, write_atomic

__all__ = ["AtomicCheckpointIO", "Checkpoints"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint files that are complete or not there, and that are read without unpickling objects."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Any = True) -> dict[str, Any]:  # noqa: ARG002
        try:
            checkpoint: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
        except (RuntimeError, EOFError, UnpicklingError) as error:
            raise UserError(f"{path} is no checkpoint of ours; pass --overwrite to start again") from error
        return checkpoint


class Checkpoints(Checkpoint):
    """Writes last.ckpt (the whole run) and best.ckpt (weights only) every so many epochs, and at the end.

    At Ctrl-C the epoch is finished and a checkpoint written; a second Ctrl-C stops at once, and the run goes on from
    the checkpoint before.

    Args:
        folder: Folder of the two files.
        stopping: Knows the best weights.
        every: Epochs between two checkpoints.
    """

    def __init__(self, folder: Path, stopping: EarlyStopping, *, every: int) -> None:
        if every < 1:
            raise ValueError(f"checkpoint_every is {every}, expected at least 1")
        self.folder, self.stopping, self.every = folder, stopping, every
        self._written_epoch = -1
        self._interrupted = False
        self._handler: Any = None
        self._process = os.getpid()

    @property
    def last(self) -> Path:
        """The file a run resumes from."""
        return self.folder / "last.ckpt"

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        interrupted = trainer.strategy.reduce_boolean_decision(self._interrupted, all=False)
        epochs = trainer.current_epoch + 1
        if interrupted or trainer.should_stop or epochs == trainer.max_epochs or epochs % self.every == 0:
            self._write(trainer)
        if interrupted:
            raise KeyboardInterrupt

    def _write(self, trainer: pl.Trainer) -> None:
        stopping = self.stopping
        if stopping.best_epoch > self._written_epoch and trainer.is_global_zero:
            best = {"epoch": stopping.best_epoch, "state_dict": stopping.weights}
            write_atomic(self.folder / "best.ckpt", lambda file: torch.save(best, file))
            self._written_epoch = stopping.best_epoch
        trainer.save_checkpoint(self.last)

    def on_train_start(self, *_: Any) -> None:
        # not earlier: Lightning puts back, after an exception, the handlers of just before
        # Python lets only the main thread have signal handlers
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        if os.getpid() != self._process:
            return  # a data loader's worker: its parent decides
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        print("\nstopping after this epoch; press Ctrl-C again to stop at once", file=sys.stderr)

    def teardown(self, *_: Any, **__: Any) -> None:
        self._restore_handler()

    def on_exception(self, *_: Any) -> None:
        self._restore_handler()

    def _restore_handler(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            self._handler = None
