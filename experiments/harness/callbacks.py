"""Lightning callbacks: random states, samplers, early stopping and a progress bar."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import pyro
import torch
from lightning.pytorch.callbacks import ProgressBar
from torch import Tensor
from tqdm import tqdm


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
        self.monitor, self.patience, self.keep = dict(monitor), patience, keep
        self.best = {name: float("inf" if mode == "min" else "-inf") for name, mode in monitor.items()}
        self.waited, self.best_epoch = 0, -1
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


INTERVALS = {True: 0.1, False: 60.0}  # seconds between two looks of a bar: on a terminal, and in a log file


class Bar(ProgressBar):
    """One progress bar over all steps of a training; it shows the epoch, the loss and the last validation metrics.

    Metrics are shown in the ``terms`` of the task, such as a loss as a perplexity.
    """

    def __init__(self, monitor: Iterable[str], terms: Callable[[str, float], tuple[str, float]]) -> None:
        super().__init__()
        self._monitor, self._terms = tuple(monitor), terms
        self._bar: tqdm[Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        total = int(trainer.num_training_batches) * (trainer.max_epochs or 0)
        interval = INTERVALS[sys.stderr.isatty()]
        self._bar = tqdm(total=total, initial=trainer.global_step, unit="step", mininterval=interval, miniters=0)

    def on_train_batch_end(self, trainer: pl.Trainer, _: pl.LightningModule, outputs: Any, *__: Any) -> None:
        if self._bar is not None and self._bar.update():  # it has been drawn: the numbers are those of the next time
            metrics = {name: trainer.callback_metrics.get(name) for name in self._monitor}
            shown = dict(self._terms(name, value.item()) for name, value in metrics.items() if value is not None)
            shown = {"loss": outputs["loss"].item()} | shown
            numbers = {name: f"{value:.3f}" for name, value in shown.items()}
            self._bar.set_postfix({"epoch": trainer.current_epoch + 1} | numbers, refresh=False)

    def on_train_end(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_exception(self, *_: Any) -> None:
        self.on_train_end()
