"""What Lightning is told of the devices of a training, and what it need not tell."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy

from experiments.harness.options import DeviceOptions

__all__ = ["placement", "quiet"]

# for the first rank, which may have to encode photographs for hours before it begins
_PATIENCE = timedelta(days=1)


def placement(config: DeviceOptions, device: torch.device) -> dict[str, Any]:
    """Arguments of Lightning's trainer: on which devices it computes."""
    return {
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": config.devices,
        "num_nodes": config.num_nodes,
        "strategy": DDPStrategy(timeout=_PATIENCE) if config.processes > 1 else "auto",
        "logger": False,
    }


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's hints: they concern devices, loaders and sums over ranks that we chose on purpose."""
    logs = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "GPU available but not used")
            warnings.filterwarnings("ignore", "The .*dataloader.* does not have many workers")
            warnings.filterwarnings("ignore", "It is recommended to use .*sync_dist=True")
            warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
