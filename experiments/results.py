"""What a run leaves in its folder: configuration, metrics, environment; all written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import torch
import yaml

from experiments.files import UserError, user_errors
from experiments.options import RunOptions, SweepOptions
from experiments.safe_yaml import read_yaml

__all__ = [
    "RunOptions",
    "SweepOptions",
    "UserError",
    "as_table",
    "metrics_table",
    "open_run",
    "read_metrics",
    "user_errors",
    "write_atomic",
    "write_environment",
    "write_metrics",
]

# What a run may leave in its folder; nothing else is ever removed from it.
_FILES = (
    "config.yaml",
    "metrics.json",
    "environment.json",
    "history.csv",
    "predictions.npz",
    "translations.txt",
    "captions.txt",
    "vocabulary.json",
)
_FOLDERS = ("checkpoints", "figures")


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file through a temporary one beside it: whenever the process dies, the old or the new file is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def open_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> None:
    """Prepare the folder of a run and save the configuration in it.

    Args:
        folder: The folder.
        config: A subclass of :class:`RunOptions` or :class:`SweepOptions`; two configurations are the same when all
            fields that the subclass added agree.
        free: Fields that may change from one call to the next, such as the number of seeds.

    Raises:
        UserError: The folder holds a run and neither ``resume`` nor ``overwrite`` is set, or ``resume`` is set and
            that run had another configuration; or both are set.
    """
    if config.resume and config.overwrite:
        raise UserError("resume and overwrite are both set, expected one of them at most")
    # through JSON: plain numbers and strings for YAML
    plain = json.loads(json.dumps(asdict(config), default=str))
    # a saved configuration read again by --config must not remove anything
    del plain["resume"], plain["overwrite"]
    identity = plain.keys() - {field.name for field in fields(SweepOptions)} - set(free)
    if config.overwrite:
        _remove_run(folder)
    present = [name for name in (*_FILES, *_FOLDERS) if (folder / name).exists()]
    if present:
        _check_same(folder, {name: plain[name] for name in identity}, resume=config.resume)
    if not present or free:
        write_atomic(folder / "config.yaml", lambda file: file.write(yaml.safe_dump(plain, sort_keys=False).encode()))


def _remove_run(folder: Path) -> None:
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def _check_same(folder: Path, wanted: Mapping[str, Any], *, resume: bool) -> None:
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} holds results but no config.yaml; choose another --out, or pass --overwrite")
    with user_errors(ValueError, OSError):
        found = read_yaml(path)
    differing = [
        f"{name} {found.get(name)} instead of {wanted[name]}" for name in wanted if found.get(name) != wanted[name]
    ]
    if differing:
        raise UserError(
            f"{folder} holds a run of another configuration ({', '.join(sorted(differing))}); choose another --out, or "
            f"pass --overwrite to remove that run"
        )
    if not resume:
        raise UserError(f"{folder} holds this run already; pass --resume to continue it, or --overwrite to start again")


def write_metrics(folder: Path, metrics: Mapping[str, float], definitions: Mapping[str, str]) -> None:
    """Write metrics.json: one number (null when not finite) a name, and under "definitions" what the names mean."""
    numbers: dict[str, Any] = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    _write_json(folder / "metrics.json", numbers | {"definitions": {name: definitions[name] for name in numbers}})


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The numbers of metrics.json; None where a run is not finished."""
    path = folder / "metrics.json"
    if not path.is_file():
        return None
    with user_errors(ValueError):
        numbers = json.loads(path.read_text())
    return {name: math.nan if value is None else value for name, value in numbers.items() if name != "definitions"}


def write_environment(folder: Path, device: torch.device) -> dict[str, Any]:
    """Write environment.json: the hardware and the versions that made the results."""
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
