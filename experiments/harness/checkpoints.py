"""Checkpoints that survive whatever stops a run, and what Ctrl-C and SIGTERM do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO

from experiments.files import UserError, reading, write_atomic
from experiments.harness.callbacks import EarlyStopping
from experiments.harness.cluster import stop_asked
from experiments.harness.ranks import is_first
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

    At Ctrl-C or SIGTERM the epoch is finished and a checkpoint written; a second signal stops at once, and the run
    goes on from the checkpoint before. With no number of epochs between two checkpoints, one comes after the first
    epoch and after every epoch that ends five seconds or more after the last checkpoint.
    """

    def __init__(self, folder: Path, stopping: EarlyStopping, *, every: int | None = None) -> None:
        self.folder, self.last = folder, folder / "checkpoints" / "last.ckpt"
        self.stopping, self.every = stopping, every
        self.epochs = 0  # in last.ckpt
        self.started = False  # the training has begun, everything is restored
        self._written = -float("inf")
        self._best_epoch = -1
        self._interrupted = False
        self._handlers: dict[int, Any] = {}
        self._process = os.getpid()

    @property
    def left(self) -> str:
        """What an interrupted run has left, in a sentence."""
        again = "the same command with --resume"
        if self.epochs == 0:
            return f"interrupted in the first epoch, so there is no checkpoint; {again} starts the training again"
        end = f"{self.last} holds the training up to the end of epoch {self.epochs - 1}"
        return f"interrupted; {end}, and {again} continues from there"

    def resumable(self, max_epochs: int) -> Path | None:
        """The file to resume from; None where there is none.

        Raises:
            UserError: The file is damaged, or holds more epochs than are asked for.
        """
        if not self.last.exists():
            return None
        self.epochs = read_run(self.last)["epoch"] + 1
        if self.epochs > max_epochs:
            raise UserError(
                f"{self.last} holds {self.epochs} epochs, and max_epochs is {max_epochs}; pass --max-epochs "
                f"{self.epochs} or more, choose another --out, or pass --overwrite to train again"
            )
        return self.last

    @contextmanager
    def explaining(self, *, resumed: bool) -> Iterator[None]:
        """Let a stop inside say what it leaves, and an error from restoring a checkpoint name the file."""
        try:
            yield
        except SystemExit:
            # Lightning's answer to Ctrl-C and SIGTERM; what to do about it is the caller's decision
            raise KeyboardInterrupt(self.left) from None
        except Exception as error:
            if not resumed or self.started or isinstance(error, UserError):
                raise
            raise UserError(
                f"{self.last} does not fit this training ({type(error).__name__}: {error}); pass --overwrite to train "
                f"again"
            ) from error

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        epochs = trainer.current_epoch + 1
        due = epochs % self.every == 0 if self.every else time.monotonic() - self._written >= SECONDS
        # several ranks have several clocks, and a signal may reach one of them only
        interrupted, due = (
            trainer.strategy.reduce_boolean_decision(decision, all=False)
            for decision in (self._interrupted or stop_asked(), due)
        )
        if interrupted or due or trainer.should_stop or epochs == trainer.max_epochs:
            self._write(trainer)
        if interrupted:
            raise KeyboardInterrupt

    def _write(self, trainer: pl.Trainer) -> None:
        stopping = self.stopping
        if stopping.best_epoch > self._best_epoch and trainer.is_global_zero:
            write_weights(self.folder, stopping.weights, epoch=stopping.best_epoch)
            self._best_epoch = stopping.best_epoch
        trainer.save_checkpoint(self.last)
        self.epochs, self._written = trainer.current_epoch + 1, time.monotonic()

    def on_train_start(self, *_: Any) -> None:
        self.started = True
        # not earlier: Lightning puts back, after an exception, the handlers of just before
        # Python lets only the main thread have signal handlers
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # who ignores a signal, as the processes of a sweep do with Ctrl-C, goes on ignoring it
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._interrupt)

    def _interrupt(self, *_: Any) -> None:
        if os.getpid() != self._process:
            return  # a data loader's worker: its parent decides
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True
        if multiprocessing.parent_process() is None and is_first():
            # not print: the signal may have come in the middle of one, which Python's files do not bear
            with suppress(OSError):
                os.write(2, b"\nstopping after this epoch; press Ctrl-C again to stop at once\n")

    def teardown(self, *_: Any, **__: Any) -> None:
        while self._handlers:
            number, handler = self._handlers.popitem()
            # unless Lightning has put back what was there before its own, which would keep the trainer in memory
            if signal.getsignal(number) == self._interrupt:
                signal.signal(number, handler)

    on_exception = teardown
