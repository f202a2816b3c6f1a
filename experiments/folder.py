"""The folder of a run, which owns it whole: one process at a time, the saved configuration, the metrics."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from experiments.files import UserError, read_json, read_yaml, reading, write_text
from experiments.options import OptionError, RunOptions, SweepOptions, TrainingOptions, configuration, unused

Config = TypeVar("Config")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Item = TypeVar("Item")

# What every config.yaml of ours has, of whichever script; a file of that name without them is somebody else's.
_SIGNATURE = {"out", "data_root", "device", "progress"}

_held: dict[Path, FileLock] = {}


def open_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> None:
    """Prepare the folder of a run, save the configuration in it and keep other processes out.

    A run owns its folder: it is empty before (hidden files do not count), and ``overwrite`` removes all that it holds.
    The folder is held until the function marked by :func:`exclusive` returns, or until the process ends. Two
    configurations are the same when all fields agree that a subclass of :class:`SweepOptions` or :class:`RunOptions`
    has added, without those that are ``free`` to change, such as the number of seeds.

    Raises:
        UserError: Another process works in the folder, or what it holds cannot be resumed or overwritten as is asked.
    """
    if not is_first():
        return
    if config.resume and config.overwrite:
        raise UserError(
            "resume and overwrite are both set, expected one of them at most; to go on leave --overwrite out"
        )
    plain = _plain(asdict(config))
    # a saved configuration read again by --config must not remove anything, and says what is in force alone
    for name in {"resume", "overwrite", *(option for option, _, _ in unused(config))}:
        del plain[name]
    _hold(folder)
    present = [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    if present and not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} holds {present[0]} but no config.yaml: no run of ours; choose an empty --out")
    if present and config.overwrite:
        _remove_run(folder)
    elif present:
        where = {field.name for field in fields(SweepOptions)}
        asked = {name: value for name, value in plain.items() if name not in where.union(free)}
        # a run from before there was an option has its default
        defaults = _plain({field.name: field.default for field in fields(config) if field.default is not MISSING})
        _check_same(folder, asked, defaults, resume=config.resume)
        if not free:
            return
    write_text(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False))


def open_training(folder: Path, config: TrainingOptions) -> dict[str, float] | None:
    """:func:`open_run` for a training whose ``max_epochs`` may be larger than before.

    It ends with the same numbers as a training that was started with so many. Not so one whose learning rate is
    ``planned`` over all epochs, which would be another from the first step on: its number of epochs stays.

    Returns:
        The metrics of a run that has all epochs that are asked for or stopped early; None when there is something to
        train.

    Raises:
        UserError: As :func:`open_run`, or the run has more epochs than are asked for.
    """
    metrics = read_metrics(folder) if config.resume else None
    if metrics is None or config.planned:
        open_run(folder, config, free=() if config.planned else ("max_epochs",))
        return metrics
    epochs = int(metrics["epochs"])
    if epochs > config.max_epochs:
        raise UserError(
            f"{folder} holds a run of {epochs} epochs, and max_epochs is {config.max_epochs}; pass --max-epochs "
            f"{epochs} or more, choose another --out, or pass --overwrite to train again"
        )
    before = saved_options(folder)["max_epochs"]
    open_run(folder, replace(config, max_epochs=before))
    if epochs < before or epochs == config.max_epochs:  # it stopped early, or has all
        return metrics
    (folder / "metrics.json").unlink()
    open_run(folder, config, free=("max_epochs",))
    return None


def resumed(folder: Path, config: TrainingOptions) -> dict[str, float] | None:
    """Return the metrics of a finished run that is resumed, which needs no data; None where there is one to train."""
    return open_training(folder, config) if config.resume else None


def begin(folder: Path, config: TrainingOptions) -> None:
    """Open the folder of a run that is not resumed.

    Called when its data are loaded: where they are missing, the run that is to be overwritten stays.
    """
    if not config.resume:
        open_training(folder, config)


def _hold(folder: Path) -> None:
    folder = folder.resolve()
    if folder in _held:
        return
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{folder} is in use by another process; wait for it, or choose another --out") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}; choose another --out") from error
    _held[folder] = lock


def exclusive(run: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a script's function let go, when it ends, of the folders that it has opened."""

    @wraps(run)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        before = set(_held)
        try:
            return run(*args, **kwargs)
        finally:
            for folder in _held.keys() - before:
                _held.pop(folder).release()

    return wrapped


def saved_options(folder: Path) -> dict[str, Any]:
    """The content of config.yaml in the folder of a run; UserError where there is no such file, or a damaged one."""
    return read_yaml(folder / "config.yaml", "put an intact copy there, or choose another folder")


def saved_config(folder: Path, config_type: type[Config], *, script: str, **changes: Any) -> Config:
    """The configuration of the run in a folder, checked as on the command line, with changes.

    The error names the ``script`` that makes such runs.

    Raises:
        UserError: The folder holds no run, or its config.yaml is damaged or has a value that is not allowed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} holds no run (config.yaml is missing); train one: python -m {script} train")
    known = {field.name for field in fields(config_type)}  # type: ignore[arg-type]
    values = saved_options(folder) | {"out": folder} | changes
    try:
        return configuration(config_type, {name: value for name, value in values.items() if name in known})
    except OptionError as error:
        raise UserError(f"{path}: {error}; put the value of the training back, or train again") from error


def _remove_run(folder: Path) -> None:
    """Remove all that the folder of a run holds; what a symbolic link points to stays."""
    if not saved_options(folder).keys() >= _SIGNATURE:
        raise UserError(f"{folder / 'config.yaml'} was not written by these scripts; choose another --out")
    # config.yaml at last: if the removal is interrupted, the rest is still known to be a run
    for path in sorted(folder.iterdir(), key=lambda path: path.name == "config.yaml"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(options, default=str))
    return plain


def _check_same(folder: Path, asked: Mapping[str, Any], defaults: Mapping[str, Any], *, resume: bool) -> None:
    saved = {**defaults, **saved_options(folder)}
    differing = [f"{name} {saved.get(name)} instead of {to}" for name, to in asked.items() if saved.get(name) != to]
    if differing:
        raise UserError(
            f"{folder} holds a run of another configuration ({', '.join(sorted(differing))}); choose another --out, or "
            f"pass --overwrite to remove that run"
        )
    if not resume:
        raise UserError(f"{folder} holds this run already; pass --resume to continue it, or --overwrite to start again")


# metrics and environment


def write_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics.json: one number a name, null when it is not finite; docs/metrics.md says what they are."""
    values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    _write_json(folder / "metrics.json", values)


def read_metrics(folder: Path) -> dict[str, float] | None:
    """The numbers of metrics.json; None where a run is not finished, and UserError where the file is damaged."""
    path, remedy = folder / "metrics.json", "remove it, and the same command with --resume makes it again"
    if not path.is_file():
        return None
    values = read_json(path, remedy)
    with reading(path, "a number for each name", remedy):
        return {name: math.nan if value is None else float(value) for name, value in values.items()}


def write_environment(folder: Path, device: torch.device) -> None:
    """Write environment.json: hardware and versions."""
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


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


# several processes that train one network, the ranks


def is_first() -> bool:
    """Whether this process writes, prints and evaluates; Lightning knows it from the environment."""
    return getattr(rank_zero_only, "rank", 0) == 0  # an attribute that its type does not tell of


def gathered(items: list[Item]) -> list[Item]:
    """The items of all ranks, in the order of the ranks; the same everywhere."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return items
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, items)
    return [item for part in parts for item in part]
