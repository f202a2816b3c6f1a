"""Checkpoints that survive whatever stops a run, and what Ctrl-C and SIGTERM do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from experiments.files import UserError, write_atomic
from experiments.harness.callbacks import EarlyStopping
from experiments.harness.cluster import stop_asked
from experiments.harness.ranks import is_first
from experiments.harness.weights import bad_file, read_safetensors, write_weights

__all__ = ["AtomicCheckpointIO", "Checkpoints", "read_run", "read_weights"]

# Between two checkpoints of a run that names no number of epochs: short epochs stay short, long ones are all kept.
SECONDS = 5.0

_CITED = 300  # letters of the error of a library
_MOST_COPIES = 4  # of what a checkpoint stores: tied weights are there once, under several names

# What checkpoints hold: a type, or the parts of a dictionary; {...: shape} stands for any names.
_TENSORS = {...: Tensor}
_WEIGHTS = {"epoch": int, "state_dict": _TENSORS}
_RUN = _WEIGHTS | {
    "global_step": int,
    "pytorch-lightning_version": str,
    "loops": {"fit_loop": dict},
    "callbacks": {"EarlyStopping": {"weights": _TENSORS}, "History": dict, "RandomState": dict},
    "optimizer_states": list,
    "lr_schedulers": list,
}
_OPTIMIZER = {"state": {...: {"step": Tensor, "exp_avg": Tensor, "exp_avg_sq": Tensor}}, "param_groups": list}


def read_run(path: Path, *, map_location: Any = "cpu") -> dict[str, Any]:
    """Read last.ckpt, the whole state of a training.

    Raises:
        UserError: The file is missing or damaged, or is no checkpoint of ours.
    """
    checkpoint = _read(path, map_location, _RUN)
    best = checkpoint["callbacks"]["EarlyStopping"]["weights"]
    # there are none as long as no epoch had finite metrics
    if best and best.keys() != checkpoint["state_dict"].keys():
        raise bad_file(path, "its best weights have other names than its last ones")
    if not checkpoint["optimizer_states"]:
        raise bad_file(path, "its optimizer_states are empty")
    for state in checkpoint["optimizer_states"]:
        _require(path, state, _OPTIMIZER, "optimizer_states")
    return checkpoint


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights in best.safetensors, or in best.ckpt of an earlier release.

    Raises:
        UserError: As of :func:`read_run`.
    """
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    weights: dict[str, Tensor] = _read(path, "cpu", _WEIGHTS)["state_dict"]
    return weights


def _read(path: Path, map_location: Any, shape: Mapping[Any, Any]) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise BadZipFile("it is a folder, a pipe or a device")
        with ZipFile(path) as archive:
            _check_sizes(archive, path.stat().st_size)
            # torch.save writes a checksum of every part, and torch.load looks at none of them
            damaged = archive.testzip()
        if damaged is not None:
            raise BadZipFile(f"the checksum of {damaged} is wrong")
        checkpoint = torch.load(path, map_location=map_location, weights_only=True)
        _check_tensors(checkpoint, path.stat().st_size)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; pass --overwrite to train again") from error
    except Exception as error:  # on damaged bytes the readers raise nearly anything
        seen = " ".join(str(error).split())[:_CITED]  # torch adds a page of advice
        raise bad_file(path, f"it cannot be read ({type(error).__name__}: {seen})") from error
    _require(path, checkpoint, shape, "checkpoint")
    return dict(checkpoint)


def _check_sizes(archive: ZipFile, size: int) -> None:
    """Refuse parts that take more memory than the file has bytes: packed ones, or ones that lie over each other."""
    parts = archive.infolist()
    if any(part.compress_type != ZIP_STORED for part in parts) or sum(part.file_size for part in parts) > size:
        raise BadZipFile(f"its parts are packed, or larger than the {size} bytes of the file")


def _check_tensors(checkpoint: Any, size: int) -> None:
    """Refuse tensors that a few bytes in the file make large: views that repeat numbers, sparse ones, of no device."""
    left, seen, total = [checkpoint], set[int](), 0
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.layout != torch.strided or value.is_meta or value.nbytes > value.untyped_storage().nbytes():
                raise ValueError(f"a tensor {list(value.shape)} that is not stored number by number")
            total += value.nbytes
            if total > _MOST_COPIES * size:
                raise ValueError(f"tensors of {total} bytes in a file of {size}")
        elif isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value


def _require(path: Path, found: Any, shape: Any, name: object) -> None:
    kind: Any = shape if isinstance(shape, type) else dict
    if not isinstance(found, kind):
        raise bad_file(path, f"its {name} is a {type(found).__name__}, expected {kind.__name__}")
    if kind is shape:
        return
    for part, inner in (dict.fromkeys(found, shape[...]) if ... in shape else shape).items():
        if part not in found:
            raise bad_file(path, f"its {name} has no {part}")
        _require(path, found[part], inner, part)


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
