"""What a training writes as it goes on: its history, its best weights and its whole state, each whole or not at all."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import lightning.pytorch as pl
import safetensors.torch
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from experiments.files import reading, write_atomic, write_text
from experiments.harness.callbacks import EarlyStopping

AGAIN = "pass --overwrite to train again"
SECONDS = 5.0  # between two checkpoints at least: short epochs stay short, long ones are all kept


def weights_file(folder: Path) -> Path:
    """The file with the best weights of the run in a folder, which is read without pickle and without Lightning."""
    return folder / "checkpoints" / "best.safetensors"


def write_weights(folder: Path, weights: Mapping[str, Tensor], *, epoch: int) -> None:
    """Write the best weights of the run in a folder, and of which epoch they are, counted from 0.

    Tied weights stand under each of their names.
    """
    # clones: the format refuses tensors that share their numbers
    kept = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    metadata = {"format": "pt", "epoch": str(epoch)}
    write_atomic(weights_file(folder), lambda file: file.write(safetensors.torch.save(kept, metadata)))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run; DamagedFileError where the file is missing or damaged."""
    with reading(path, "the weights of a run", AGAIN):
        return safetensors.torch.load_file(path)


def read_run(path: Path, *, map_location: Any = "cpu") -> dict[str, Any]:
    """Read last.ckpt, the whole state of a training, without pickle; DamagedFileError where that cannot be."""
    with reading(path, "a checkpoint of this program", AGAIN):
        return dict(torch.load(path, map_location=map_location, weights_only=True))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Checkpoint files that are complete or not there, and that are read without unpickling objects."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Any = True) -> dict[str, Any]:  # noqa: ARG002
        return read_run(Path(path), map_location=map_location)


class History(pl.Callback):
    """A row of metrics for each epoch, kept in the checkpoint: metrics by name, ``epoch``, and ``step_ms``.

    ``step_ms`` is the mean time of a training step.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._start = 0.0
        self._times: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._start = _now(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._times.append(1000 * (_now(trainer) - self._start))

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self.rows.append({"epoch": trainer.current_epoch, **metrics, "step_ms": fmean(self._times)})
        self._times.clear()

    def csv(self) -> str:
        """All rows; metrics that an epoch does not have are left empty."""
        text, names = io.StringIO(), dict.fromkeys(name for row in self.rows for name in row)
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state_dict["rows"]]


def _now(trainer: pl.Trainer) -> float:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.perf_counter()


class Checkpoints(Checkpoint):
    """Writes history.csv, best.safetensors (weights) and last.ckpt (the whole training) as it goes on, and at its end.

    They come after the first epoch, and after every epoch that ends ``SECONDS`` or more after the last ones.
    Lightning's own callback counts either epochs or seconds, and checkpoints in the middle of an epoch do not resume to
    the same numbers.
    """

    def __init__(self, folder: Path, history: History, stopping: EarlyStopping) -> None:
        self.folder, self.last = folder, folder / "checkpoints" / "last.ckpt"
        self.history, self.stopping = history, stopping
        self._written, self._best_epoch = -float("inf"), -1

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        ends = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        due = ends or time.monotonic() - self._written >= SECONDS
        if not trainer.strategy.reduce_boolean_decision(due, all=False):  # several ranks have several clocks
            return
        if trainer.is_global_zero:
            write_text(self.folder / "history.csv", self.history.csv())
            if self.stopping.best_epoch > self._best_epoch:
                self._best_epoch = self.stopping.best_epoch
                write_weights(self.folder, self.stopping.weights, epoch=self._best_epoch)
        trainer.save_checkpoint(self.last)
        self._written = time.monotonic()
