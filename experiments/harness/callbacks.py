"""Lightning callbacks: random states, samplers, history, early stopping and progress bars."""

from __future__ import annotations

import csv
import io
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import pyro
import torch
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from torch import Tensor
from tqdm import tqdm

from experiments.files import unwritable, write_atomic

__all__ = ["BatchBar", "EarlyStopping", "EpochBar", "History", "RandomState", "SamplerEpoch"]


class RandomState(pl.Callback):
    """Keeps the states of the random generators in the checkpoint: a resumed run draws the same numbers.

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
    """Lets every rank have its part of the batches, and a resumed run begin with the batches of its epoch.

    Lightning (2.6) sets the epoch of the sampler before every epoch, but when it resumes only after it has made the
    loader's iterator, so the first epoch would have the order of epoch 0.
    """

    def __init__(self, sampler: Any, *others: Any) -> None:
        self.sampler, self.others = sampler, others

    def setup(self, trainer: pl.Trainer, *_: Any, **__: Any) -> None:
        for sampler in (self.sampler, *self.others):
            sampler.share(trainer.global_rank, trainer.world_size)

    def on_load_checkpoint(self, trainer: pl.Trainer, module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        # what Lightning itself gives to set_epoch; checkpoint["epoch"] is one less if taken at the end of an epoch
        self.sampler.set_epoch(checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"])


class History(pl.Callback):
    """One row of metrics per epoch, in the checkpoint and in a CSV file, which gets its row when the epoch ends.

    A row has the metrics by name, ``epoch`` and the mean time of a training step, ``step_ms``. A resumed run writes the
    file again with the rows of its checkpoint, and goes on from there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, float]] = []
        self._columns: list[str] = []
        self._start = 0.0
        self._times: list[float] = []

    def on_fit_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if not trainer.is_global_zero:
            return
        if self.rows:
            self.write()
        else:
            self.path.unlink(missing_ok=True)

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        self._start = _now(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self._times.append(1000 * (_now(trainer) - self._start))

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self.rows.append({"epoch": trainer.current_epoch, **metrics, "step_ms": fmean(self._times)})
        self._times.clear()
        if not trainer.is_global_zero:
            return
        if self.rows[-1].keys() <= set(self._columns):
            # a line alone: the whole file at every one of a thousand short epochs would cost as much as they do
            try:
                with self.path.open("ab") as file:
                    file.write(self._lines(self.rows[-1:]))
            except OSError as error:
                raise unwritable(self.path, error) from error
        else:
            self.write()

    def write(self) -> None:
        """Write the CSV file; metrics that an epoch does not have are left empty."""
        self._columns = list(dict.fromkeys(name for row in self.rows for name in row))
        header = dict(zip(self._columns, self._columns, strict=True))
        content = self._lines([header, *self.rows])
        write_atomic(self.path, lambda file: file.write(content))

    def _lines(self, rows: Sequence[Mapping[str, float | str]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state_dict["rows"]]


def _now(trainer: pl.Trainer) -> float:
    if trainer.strategy.root_device.type == "cuda":
        torch.cuda.synchronize(trainer.strategy.root_device)
    return time.perf_counter()


Keep = Literal["best", "last"]  # the epoch whose weights a training leaves


class EarlyStopping(pl.Callback):
    """Stop when no metric has come up to its best value for ``patience`` epochs; keep the best weights.

    Ties count. Waiting starts again when ANY metric is as good as its best so far; the weights are kept when ALL
    are. With one metric this is ordinary early stopping.

    ``monitor`` says of each metric whether a good one is small or large; the best values may be of different epochs.
    With ``keep="last"`` the weights of every epoch with finite metrics are kept, so the last one's remain: the right
    choice where the learning rate falls to zero by plan, and where few validation examples would choose by chance.

    Source: Velickovic et al. (2018), Graph attention networks, section 3.3, with accuracy and loss.
    """

    def __init__(self, monitor: Mapping[str, Literal["min", "max"]], *, patience: int, keep: Keep = "best") -> None:
        self.monitor = dict(monitor)
        self.keep = keep
        self.patience = patience
        self.best = {name: float("inf" if mode == "min" else "-inf") for name, mode in monitor.items()}
        self.waited = 0
        self.best_epoch = -1
        self.weights: dict[str, Tensor] = {}

    def update(self, metrics: Mapping[str, float | Tensor]) -> bool:
        """Take note of an epoch's metrics; True when its weights are to be kept."""
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

    @property
    def exhausted(self) -> bool:
        """Whether it is time to stop."""
        return self.waited >= self.patience

    def on_fit_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # a run resumed from its last checkpoint has nothing left to do
        trainer.should_stop = trainer.should_stop or self.exhausted

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        missing = self.monitor.keys() - trainer.callback_metrics.keys()
        if missing:
            raise KeyError(f"the module logs no {', '.join(missing)}; it logs {', '.join(trainer.callback_metrics)}")
        if self.update(trainer.callback_metrics):
            self.best_epoch = trainer.current_epoch
            self.weights = {name: value.detach().clone() for name, value in module.state_dict().items()}
        trainer.should_stop = trainer.should_stop or self.exhausted

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("best", "waited", "best_epoch", "weights")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = {name: float(state_dict["best"][name]) for name in self.monitor}
        self.waited, self.best_epoch = int(state_dict["waited"]), int(state_dict["best_epoch"])
        self.weights = dict(state_dict["weights"])


Terms = Callable[[str, float], tuple[str, float]]  # a metric, as a bar shows it


class EpochBar(ProgressBar):
    """One progress bar over all epochs, where these take no time or nobody looks; it shows the loss and these metrics.

    Metrics are shown in the ``terms`` of the task, such as a loss as a perplexity.
    """

    def __init__(self, monitor: Iterable[str], terms: Terms) -> None:
        super().__init__()
        self._shown, self._terms = ("loss", *monitor), terms
        self._bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        # a log file gets a line a minute, a terminal a smooth bar
        interval = 0.1 if sys.stderr.isatty() else 60.0
        total, done = trainer.max_epochs, trainer.current_epoch
        self._bar = tqdm(total=total, initial=done, unit="epoch", mininterval=interval, miniters=0)

    def on_train_batch_end(self, *_: Any) -> None:
        if self._bar is not None:  # a long epoch shows that it goes on
            self._bar.update(0)

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if self._bar is not None:
            self._bar.set_postfix(_shown(trainer, self._shown, self._terms), refresh=False)
            self._bar.update()

    def on_train_end(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()


class BatchBar(TQDMProgressBar):
    """Lightning's bar over the batches of an epoch, with the loss of the last batch and the last validation metrics.

    Metrics are shown in the ``terms`` of the task, as in :class:`EpochBar`.
    """

    def __init__(self, monitor: Iterable[str], terms: Terms) -> None:
        super().__init__()
        self._shown, self._terms = tuple(monitor), terms
        self._loss: Tensor | None = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loss = outputs["loss"].detach()
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:  # noqa: ARG002
        loss = {} if self._loss is None else {"loss": f"{self._loss.item():.3f}"}
        return loss | _shown(trainer, self._shown, self._terms)


def _shown(trainer: pl.Trainer, names: Iterable[str], terms: Terms) -> dict[str, str]:
    found = trainer.callback_metrics
    pairs = (terms(name, found[name].item()) for name in names if name in found)
    return {name: f"{value:.3f}" for name, value in pairs}
