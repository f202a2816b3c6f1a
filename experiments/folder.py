"""The folder of a run, which owns it whole: one process at a time, the saved configuration, the metrics."""

from __future__ import annotations

import csv
import json
import math
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from filelock import FileLock, Timeout
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

from experiments.files import UserError, read_json, read_yaml, reading, write_text
from experiments.options import OptionError, RunOptions, SweepOptions, configuration, is_whole, unused
from experiments.report.report import RESULTS

Config = TypeVar("Config")
Item = TypeVar("Item")

# Options in the config.yaml of every script here; a file of that name without them was written by something else.
_SIGNATURE = {"out", "data_root", "device", "progress"}


@contextmanager
def open_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> Iterator[Path]:
    """Hold the folder of a study, with its configuration saved in it, until the block ends.

    Trainings, which can be resumed, take :func:`experiments.run.run_folder`.

    A run owns its folder: it is empty before, and ``overwrite`` removes all that it holds. Hidden files do not count:
    they may be there before, and stay.
    Two configurations are the same when all fields agree that a subclass of :class:`SweepOptions` or
    :class:`RunOptions` has added, except those that are ``free`` to change, such as the number of seeds.

    Yields:
        The folder.

    Raises:
        UserError: Another process works in the folder, or its run cannot be resumed or overwritten as is asked.
    """
    with hold(folder):
        check_run(folder, config, free=free)
        start_run(folder, config, free=free)
        yield folder


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Make a folder and keep other processes out of it; the system lets go of it when this process is killed.

    Of several processes that train one network, the first holds the folder for all.

    Raises:
        UserError: Another process holds the folder, or it cannot be written.
    """
    if not is_first():
        yield
        return
    lock = FileLock(folder.resolve() / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"{folder} is in use by another process; wait for it, or choose another --out") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}; choose another --out") from error
    try:
        yield
    finally:
        lock.release()


def check_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> None:
    """Refuse a folder whose content cannot be resumed or overwritten as is asked; nothing is written.

    Raises:
        UserError: Naming the folder, what it holds, and what to do.
    """
    if not is_first():
        return
    if config.resume and config.overwrite:
        raise UserError(
            "resume and overwrite are both set, expected one of them at most; to go on leave --overwrite out"
        )
    content = _content(folder)
    if not content:
        return
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} holds {content[0]} but no config.yaml: no run of ours; choose an empty --out")
    if config.overwrite:
        if not saved_options(folder).keys() >= _SIGNATURE:
            raise UserError(f"{folder / 'config.yaml'} was not written by these scripts; choose another --out")
        return
    where = {field.name for field in fields(SweepOptions)}
    asked = {name: value for name, value in _options_in_force(config).items() if name not in where.union(free)}
    # a run from before there was an option has its default
    defaults = _plain({field.name: field.default for field in fields(config) if field.default is not MISSING})
    if unknown := sorted(saved_options(folder).keys() - {field.name for field in fields(config)}):
        raise UserError(
            f"{folder} holds a run of another command or version, with options that there are not here "
            f"({', '.join(unknown)}); choose another --out, or pass --overwrite to remove that run"
        )
    _check_same(folder, asked, defaults, resume=config.resume)


def start_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> None:
    """Remove the run that is overwritten, and save the configuration, after :func:`check_run` has passed.

    The saved configuration of a run that is resumed changes only where something is ``free`` to change.
    """
    if not is_first():
        return
    is_there = bool(_content(folder))
    if is_there and config.overwrite:
        _remove_run(folder)
    if config.overwrite or free or not is_there:
        write_text(folder / "config.yaml", yaml.safe_dump(_options_in_force(config), sort_keys=False))


def _content(folder: Path) -> list[str]:
    """Names in a folder that are not hidden; none where there is no folder."""
    if not folder.is_dir():
        return []
    return [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".")]


def _options_in_force(config: RunOptions) -> dict[str, Any]:
    """Options that config.yaml holds, as plain values."""
    plain = _plain(asdict(config))
    # a saved configuration read again by --config must not remove anything, and has only the options that are used
    for name in {"resume", "overwrite", *(option for option, _, _ in unused(config))}:
        del plain[name]
    return plain


def saved_options(folder: Path) -> dict[str, Any]:
    """Read config.yaml in the folder of a run; UserError where there is no such file, or a damaged one."""
    return read_yaml(folder / "config.yaml", "put an intact copy there, or choose another folder")


def saved_config(folder: Path, config_type: type[Config], *, script: str, **changes: Any) -> Config:
    """Read the configuration of the run in a folder, with changes, and check it as on the command line.

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
    """Remove all that the folder of a run holds; hidden files, such as .git, and what links point to stay."""
    # config.yaml at last: if the removal is interrupted, the rest is still known to be a run
    for path in sorted(map(folder.joinpath, _content(folder)), key=lambda path: path.name == "config.yaml"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
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


def results_folder(config: Any) -> Path | None:
    """Return the folder that a command's report goes to, or None where it goes to none.

    It is that of ``--results``. Without it a command with all its defaults replaces the published numbers.
    """
    folder: Path | None = config.results
    return RESULTS if folder is None and is_whole(config) else folder


# metrics and environment


def write_metrics(folder: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics.json: one number a name, null when it is not finite; docs/metrics.md explains them."""
    values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    _write_json(folder / "metrics.json", values)


def read_metrics(folder: Path) -> dict[str, float] | None:
    """Read metrics.json; None where a run is not finished, and UserError where the file is damaged."""
    path, remedy = folder / "metrics.json", "remove it, and the same command with --resume makes it again"
    if not path.is_file():
        return None
    values = read_json(path, remedy)
    with reading(path, "a number for each name", remedy):
        return {name: math.nan if value is None else float(value) for name, value in values.items()}


def read_history(folder: Path) -> list[dict[str, float]]:
    """Read history.csv, the metrics of every epoch of a training, as far as an epoch has them."""
    path, remedy = folder / "history.csv", "train again with --overwrite"
    with reading(path, "the metrics of every epoch", remedy), path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


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
    """Return whether this process writes, prints and evaluates; Lightning knows it from the environment."""
    return getattr(rank_zero_only, "rank", 0) == 0  # an attribute that its type does not name


def gathered(items: list[Item]) -> list[Item]:
    """Return the items of all ranks, in the order of the ranks, to every rank."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return items
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, items)
    return [item for part in parts for item in part]
