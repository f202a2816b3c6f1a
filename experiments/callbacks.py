"""Lightning callbacks and what they write as a training goes on: history, best weights and whole state."""

from __future__ import annotations

import csv
import io
import math
import random
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import pyro
import safetensors.torch
import torch
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor
from tqdm import tqdm

from experiments.files import UserError, reading, write_atomic, write_text
from experiments.report.terminal import width

AGAIN = "pass --overwrite to train again"
SECONDS = 5.0  # between two checkpoints at least: short epochs stay short, long ones are all kept


class RandomState(pl.Callback):
    """Callback that puts the states of the random generators into the checkpoint.

    So a resumed run draws the same numbers.

    Checkpoints are taken at the end of an epoch, before the next epoch's data loader draws anything. The states are the
    first rank's; the others, which draw other noise, take a seed of their own at the beginning of every epoch.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_rank > 0:
            sequence = np.random.SeedSequence([self.seed, trainer.global_rank, trainer.current_epoch])
            pyro.set_rng_seed(int(sequence.generate_state(1)[0]))

    def state_dict(self) -> dict[str, Any]:
        """States of the generators of Python, numpy, torch and every CUDA device, as plain containers and tensors."""
        state: Any = np.random.get_state()  # a tuple, or a dictionary on demand
        name, keys, *rest = state
        return {
            "python": random.getstate(),
            # a list, because reading without pickle knows no numpy arrays
            "numpy": (name, keys.tolist(), *rest),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        random.setstate(state_dict["python"])
        np.random.set_state(state_dict["numpy"])
        torch.set_rng_state(state_dict["torch"])
        # a run may go on where there are fewer devices
        for device, state in enumerate(state_dict["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)


class SamplerEpoch(pl.Callback):
    """Callback that gives every rank its part of the batches, and a resumed run the batches of its epoch.

    Lightning (2.6) sets the epoch of the sampler before every epoch, but when it resumes only after it has made the
    loader's iterator, so the first epoch would have the order of epoch 0.
    """

    def __init__(self, sampler: Any, *validation: Any) -> None:
        self.sampler, self.validation = sampler, validation

    def setup(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        for sampler in (self.sampler, *self.validation):
            sampler.share(trainer.global_rank, trainer.world_size)

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        # what Lightning itself gives to set_epoch; checkpoint["epoch"] is one less if taken at the end of an epoch
        self.sampler.set_epoch(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


Keep = Literal["best", "last"]  # the epoch whose weights a training leaves


class EarlyStopping(pl.Callback):
    """Callback that stops a training when no metric has reached its best value for ``patience`` epochs.

    It keeps the best weights.

    Ties count. Waiting starts again when ANY metric is as good as its best so far; the weights are kept when ALL
    are. With one metric this is ordinary early stopping.

    ``monitor`` says of each metric whether a good one is small or large; the best values may be of different epochs.
    With ``keep="last"`` the weights of every epoch with finite metrics are kept, so the last one's remain: the right
    choice where the learning rate falls to zero by plan, and where few validation examples would choose by chance.

    Source: Velickovic et al. (2018), Graph attention networks, section 3.3, with accuracy and loss.
    """

    def __init__(self, monitor: Mapping[str, Literal["min", "max"]], *, patience: int, keep: Keep = "best") -> None:
        self.monitor, self.patience, self.keep = dict(monitor), patience, keep
        self.best = {name: float("inf" if mode == "min" else "-inf") for name, mode in monitor.items()}
        self.waited, self.best_epoch = 0, -1
        self.weights: dict[str, Tensor] = {}

    def update(self, metrics: Mapping[str, float | Tensor]) -> bool:
        """Record the metrics of an epoch, and return whether its weights are to be kept."""
        holds = []
        for name, mode in self.monitor.items():
            value, best = float(metrics[name]), self.best[name]
            holds.append(value <= best if mode == "min" else value >= best)
            if holds[-1]:
                self.best[name] = value
        self.waited = 0 if any(holds) else self.waited + 1
        if self.keep == "last":
            return all(math.isfinite(metrics[name]) for name in self.monitor)
        return all(holds)

    def on_fit_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # a run resumed from its last checkpoint has nothing left to do
        trainer.should_stop = trainer.should_stop or self.waited >= self.patience

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.update(trainer.callback_metrics):
            self.best_epoch = trainer.current_epoch
            self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
        trainer.should_stop = trainer.should_stop or self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "waited", "best_epoch", "weights")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


# The bar keeps its width, so that the numbers behind it have room in 80 columns.
_BAR = "{percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{remaining}{postfix}]"
_BAR_WIDTH = len("100%|          | / [00:00:00]")  # without the numbers


class Bar(ProgressBar):
    """Progress bar over all steps of a training, with the epoch, the loss and the last validation metrics."""

    def __init__(self, monitor: Iterable[str]) -> None:
        super().__init__()
        self._monitor, self._bar = tuple(monitor), tqdm(disable=True)

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        total = int(trainer.num_training_batches) * (trainer.max_epochs or 0)
        self._bar = tqdm(total=total, initial=trainer.global_step, unit="step", ncols=width(), bar_format=_BAR)

    def on_train_batch_end(self, trainer: pl.Trainer, _: pl.LightningModule, outputs: Any, *__: Any) -> None:
        if self._bar.update():  # it has been drawn: the numbers are those of the next time
            metrics = outputs | {name: trainer.callback_metrics.get(name) for name in self._monitor}
            shown = {name: f"{value.item():.3f}" for name, value in metrics.items() if value is not None}
            numbers = {"epoch": str(trainer.current_epoch + 1)} | shown
            room = width() - _BAR_WIDTH - 2 * len(str(self._bar.total))
            while sum(len(f", {name}={number}") for name, number in numbers.items()) > room:
                numbers.popitem()  # a number that is cut would be a wrong one
            self._bar.set_postfix(numbers, refresh=False)

    def on_train_end(self, *_: Any) -> None:
        self._bar.close()

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()


# what is written, each whole or not at all


def weights_file(folder: Path) -> Path:
    """Return the file with the best weights of the run in a folder, which is read without pickle and Lightning."""
    return folder / "checkpoints" / "best.safetensors"


def require_weights(folder: Path) -> None:
    """Refuse the folder of a run without weights, such as one that was stopped in its first epoch.

    Raises:
        UserError: Naming the file that is missing.
    """
    if not (path := weights_file(folder)).is_file():
        raise UserError(
            f"{path} is missing, so {folder} holds no trained network; the command of its training goes on with "
            f"--resume, or trains again with --overwrite, a fine-tuning with --keep-weights as well"
        )


def write_weights(folder: Path, weights: Mapping[str, Tensor], *, epoch: int) -> None:
    """Write the best weights of the run in a folder, and of which epoch they are, counted from 0.

    Tied weights stand under each of their names.
    """
    # clones: the format refuses tensors that share their numbers
    state = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    metadata = {"format": "pt", "epoch": str(epoch)}
    write_atomic(weights_file(folder), lambda file: file.write(safetensors.torch.save(state, metadata)))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a run; DamagedFileError where the file is missing or damaged."""
    with reading(path, "the weights of a run", AGAIN):
        return safetensors.torch.load_file(path)


def read_run(path: Path, *, map_location: Any = "cpu") -> dict[str, Any]:
    """Read last.ckpt, the whole state of a training, without pickle; DamagedFileError where that cannot be."""
    with reading(path, "a checkpoint of this program", AGAIN):
        return dict(torch.load(path, map_location=map_location, weights_only=True))


class AtomicCheckpointIO(TorchCheckpointIO):
    """Plugin that writes checkpoint files whole or not at all, and reads them without unpickling objects."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ARG002
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: Any = True) -> dict[str, Any]:  # noqa: ARG002
        return read_run(Path(path), map_location=map_location)


class History(pl.Callback):
    """Callback with a row for each epoch: metrics by name, ``epoch``, and ``step_ms``; the checkpoint holds them.

    ``step_ms`` is the mean time of a training step. A GPU is not waited for in every step, as it works ahead.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._starts: list[_Moment] = []
        self._ends: list[_Moment] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._starts.append(_now(trainer))

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._ends.append(_now(trainer))

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        if trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(trainer.strategy.root_device)
        times = [_milliseconds(start, end) for start, end in zip(self._starts, self._ends, strict=True)]
        self.rows.append({"epoch": trainer.current_epoch, **metrics, "step_ms": fmean(times)})
        self._starts.clear()
        self._ends.clear()

    def csv(self) -> str:
        """Return all rows as CSV; metrics that an epoch does not have are empty."""
        text, names = io.StringIO(), dict.fromkeys(name for row in self.rows for name in row)
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return text.getvalue()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state_dict["rows"]]


_Moment = float | torch.cuda.Event  # seconds of the processor, or a place in the work of a GPU


def _now(trainer: pl.Trainer) -> _Moment:
    if trainer.strategy.root_device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(trainer.strategy.root_device))
    return event


def _milliseconds(start: Any, end: Any) -> float:
    """Return the time between two moments of one kind; the GPU has to be done with its work."""
    elapsed: float = 1000 * (end - start) if isinstance(start, float) else start.elapsed_time(end)
    return elapsed


class Checkpoints(Checkpoint):
    """Callback that writes history.csv, best.safetensors (weights) and last.ckpt (the whole training).

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
