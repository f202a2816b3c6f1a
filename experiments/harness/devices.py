"""Starting a training in several processes, as Lightning does: by itself, under torchrun, or under SLURM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch import distributed

from experiments.files import UserError, user_errors
from experiments.harness import ranks
from experiments.harness.options import DeviceOptions
from experiments.harness.placement import placement, quiet
from experiments.harness.tensorboard import require_logger
from experiments.harness.training import resolve_device

__all__ = ["on_every_rank"]


def on_every_rank(run: Callable[[Any], object], config: DeviceOptions) -> None:
    """Call a function that trains one network, in as many processes as its configuration asks for.

    Without torchrun or SLURM this process starts the others of its machine, with the command that it was started with.
    They come here too, wait until the first process is at its training, and end after it, within ``run``.

    Raises:
        UserError: There are not so many devices, not so many processes were started, the logger is not installed, or
            another process has ended.
    """
    target = resolve_device(config.device)
    _check(config, target)
    require_logger(config)
    if config.processes == 1:
        run(config)
        return
    with user_errors(ValueError), quiet():
        strategy = pl.Trainer(**placement(config, target)).strategy
        strategy.launcher.launch(strategy.setup_environment)  # type: ignore[union-attr]
    with _together():
        needed = ranks.wait_for_first()
        if not ranks.is_first():
            if needed:
                _follow(run, config)
            return
        try:
            run(config)
        finally:
            with suppress(RuntimeError):  # what ended this process may have ended the others too
                ranks.begin_together(training=False)


@contextmanager
def _together() -> Iterator[None]:
    """Say in one line that another process has ended; torch says it by many kinds of a RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, distributed.DistError) and "gloo/transport" not in str(error):
            raise
        raise UserError(
            "another process of this training has ended, and so does this one; the same command with --resume "
            "continues from the last checkpoint"
        ) from error


def _follow(run: Callable[[Any], object], config: DeviceOptions) -> None:
    """Run in another process than the first one, without a word; how an interrupted training ends is told by that."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        try:
            run(replace(config, progress=False))
        except KeyboardInterrupt:
            sys.exit()


def _check(config: DeviceOptions, target: torch.device) -> None:
    if config.strategy == "fsdp":
        raise UserError(
            "strategy is fsdp, but under it no process has the whole weights, which early stopping keeps and the "
            "evaluation reads; pass --strategy ddp"
        )
    gpu = target.type == "cuda"
    there = torch.cuda.device_count() if gpu else os.cpu_count() or 1
    if config.devices > there:
        kind = "GPU" if gpu else "CPU core"
        raise UserError(
            f"devices is {config.devices}, but this machine has {there} {kind}{'s' * (there > 1)}; pass --devices "
            f"{there}{' or fewer' * (there > 1)}"
        )
    if TorchElasticEnvironment.detect():
        started = TorchElasticEnvironment().world_size()
        if started != config.processes:
            raise UserError(
                f"torchrun has started {started} processes, but devices times num_nodes is {config.processes}; pass "
                f"the numbers of --nproc-per-node and --nnodes as --devices and --num-nodes"
            )
