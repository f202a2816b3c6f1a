"""What a run leaves in its folder: metrics and environment; all written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.files import read_json, reading, write_text
from pyro_attention.analysis import hybrid_weights


def hybrid_metrics(model: nn.Module) -> dict[str, float]:
    """Share of doubly normalised attention in every head of hybrid attention, as ``hybrid_SITE_HEAD``."""
    found = hybrid_weights(model)
    return {f"hybrid_{site}_{head}": share.item() for site, row in found.items() for head, share in enumerate(row)}


def write_metrics(folder: Path, metrics: Mapping[str, float], definitions: Mapping[str, str]) -> None:
    """Write metrics.json of a run; see :func:`write_numbers`."""
    write_numbers(folder / "metrics.json", metrics, definitions)


def write_numbers(path: Path, numbers: Mapping[str, float], definitions: Mapping[str, str]) -> None:
    """Write JSON: one number (null when not finite) a name, and under "definitions" what the names mean."""
    found: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    _write_json(path, found | {"definitions": {name: definitions[name] for name in found}})


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The numbers of metrics.json; None where a run is not finished, and UserError where the file is damaged."""
    path, remedy = folder / "metrics.json", "remove it, and the same command with --resume makes it again"
    if not path.is_file():
        return None
    numbers = read_json(path, remedy)
    with reading(path, "a number and a definition for each name", remedy):
        return {name: math.nan if numbers[name] is None else numbers[name] for name in numbers.pop("definitions")}


def write_environment(folder: Path, device: torch.device, *, script: str | None = None) -> dict[str, Any]:
    """Write environment.json: hardware, versions, and the script that made the results where no config.yaml tells."""
    packages = ("torch", "pyro-ppl", "lightning", "torchmetrics", "numpy", "scikit-learn")
    record = {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cuda": torch.version.cuda,
        **({} if script is None else {"script": script}),
    }
    _write_json(folder / "environment.json", record)
    return record


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")
