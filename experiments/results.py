"""What a run leaves in its folder: metrics and environment; all written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from experiments.files import UserError, read_json, user_errors, write_atomic
from experiments.folder import exclusive, open_results, open_run
from experiments.options import RunOptions, SweepOptions

__all__ = [
    "RunOptions",
    "SweepOptions",
    "UserError",
    "as_table",
    "exclusive",
    "metrics_table",
    "open_results",
    "open_run",
    "read_metrics",
    "user_errors",
    "write_atomic",
    "write_environment",
    "write_metrics",
]


def write_metrics(folder: Path, metrics: Mapping[str, float], definitions: Mapping[str, str]) -> None:
    """Write metrics.json: one number (null when not finite) a name, and under "definitions" what the names mean."""
    numbers: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    _write_json(folder / "metrics.json", numbers | {"definitions": {name: definitions[name] for name in numbers}})


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The numbers of metrics.json; None where a run is not finished.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / "metrics.json"
    if not path.is_file():
        return None
    remedy = "remove it, and the same command with --resume makes it again"
    numbers = read_json(path, remedy)
    definitions = numbers.pop("definitions", None)
    damaged = [name for name, value in numbers.items() if not (value is None or type(value) in (int, float))]
    if damaged or not isinstance(definitions, dict) or definitions.keys() != numbers.keys():
        seen = f"{damaged[0]} is {numbers[damaged[0]]!r}" if damaged else "names and definitions differ"
        raise UserError(f"{path} is damaged ({seen}, expected a number and a definition a name); {remedy}")
    return {name: math.nan if value is None else value for name, value in numbers.items()}


def write_environment(folder: Path, device: torch.device, *, script: str | None = None) -> dict[str, Any]:
    """Write environment.json: the hardware and the versions that made the results.

    Args:
        folder: The folder.
        device: Where they were computed.
        script: The module that did, where no config.yaml tells.
    """
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
    }
    if script is not None:
        record["script"] = script
    _write_json(folder / "environment.json", record)
    return record


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_atomic(path, lambda file: file.write(text.encode()))


def as_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as a plain text table: text to the left, numbers to the right with four significant digits.

    Example:
        >>> print(as_table([{"guide": "soft", "accuracy": 0.83}, {"guide": "weibull", "accuracy": 0.8381}]))
        guide    accuracy
        soft         0.83
        weibull    0.8381
    """
    columns = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else columns
    cells = [[_cell(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    text = [all(isinstance(row.get(name, ""), str) for row in rows) for name in columns]
    lines = []
    for line in [list(columns), *cells]:
        aligned = [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, text, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def metrics_table(metrics: Mapping[str, float]) -> str:
    """Metrics as a plain text table, one a line."""
    return as_table([{"metric": name, "value": value} for name, value in metrics.items()])


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
