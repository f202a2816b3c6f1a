"""The folder of a run: one process at a time, its saved configuration, and what --overwrite may remove."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, fields
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml
from filelock import FileLock, Timeout

from experiments.files import UserError, drawn_here, read_json, read_yaml, unwritable, write_text
from experiments.harness.checkpoints import read_run
from experiments.harness.options import DeviceOptions, OptionError, RunOptions, SweepOptions, configuration
from experiments.harness.ranks import is_first
from experiments.harness.results import read_metrics

Config = TypeVar("Config")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# What runs leave in their folder. Nothing else is ever removed from it, or written over.
_FILES = (
    *("config.yaml", "metrics.json", "environment.json", "history.csv", "predictions.npz"),
    *("translations.txt", "captions.txt", "summaries.txt", "answers.json", "vocabulary.json", "graph.json"),
    "report.html",
)
_FOLDERS = ("checkpoints", "figures", "tensorboard")
_BELOW = ("checkpoints/best.*", "checkpoints/last.ckpt", "figures/*.png", "tensorboard/events.out.tfevents.*",
          "tensorboard/hparams.yaml")  # fmt: skip
# What every config.yaml of ours has, of whichever script; a file of that name without them is somebody else's.
_SIGNATURE = {"out", "data_root", "device", "progress"}

_held: dict[Path, FileLock] = {}


def open_run(folder: Path, config: RunOptions, *, free: Sequence[str] = ()) -> None:
    """Prepare the folder of a run, save the configuration in it and keep other processes out.

    The folder is held until the function marked by :func:`exclusive` returns, or until the process ends. Two
    configurations are the same when all fields agree that a subclass of :class:`SweepOptions` or :class:`RunOptions`
    has added, or :class:`DeviceOptions`, without those that are ``free`` to change, such as the number of seeds. Of the
    processes that share out a training, the first one has the folder.

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
    # a saved configuration read again by --config must not remove anything
    del plain["resume"], plain["overwrite"]
    _hold(folder)
    present = _present(folder)
    if present and config.overwrite:
        _remove_run(folder, present)
    elif present:
        where = {field.name for kind in (SweepOptions, DeviceOptions) for field in fields(kind)}
        wanted = {name: value for name, value in plain.items() if name not in where.union(free)}
        # a run from before there was an option has its default
        defaults = _plain({field.name: field.default for field in fields(config) if field.default is not MISSING})
        _check_same(folder, wanted, defaults, resume=config.resume)
        if not free or saved_options(folder) == plain:
            return
    write_text(folder / "config.yaml", yaml.safe_dump(plain, sort_keys=False))


def open_training(folder: Path, config: Any, *, planned: bool = False) -> dict[str, float] | None:
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
    before = saved_options(folder).get("max_epochs") if (folder / "config.yaml").is_file() else None
    # config.yaml is written again for another number of epochs alone: a finished run may lie where nobody may write
    if planned or before in (None, config.max_epochs):
        open_run(folder, config)
        return metrics
    epochs = 0 if metrics is None else metrics["epochs"]
    if epochs > config.max_epochs:
        raise UserError(
            f"{folder} holds a run of {epochs} epochs, and max_epochs is {config.max_epochs}; pass --max-epochs "
            f"{epochs} or more, choose another --out, or pass --overwrite to train again"
        )
    open_run(folder, config, free=("max_epochs",))
    if metrics is None or epochs == config.max_epochs:
        return metrics
    last = read_run(folder / "checkpoints" / "last.ckpt")
    if last["callbacks"]["EarlyStopping"]["waited"] >= config.patience:
        if config.progress:
            print(f"{folder} stopped early, after {epochs} epochs; more of them change nothing", file=sys.stderr)
        return metrics
    (folder / "metrics.json").unlink(missing_ok=True)
    return None


def open_results(folder: Path, script: str) -> None:
    """Keep a folder for the results of a script that can be repeated as it is; UserError where it holds others."""
    _hold(folder)
    present, record = _present(folder, "benchmarks.json"), folder / "environment.json"
    found = read_json(record, "choose another --out").get("script") if record.is_file() else None
    if present and found != script:
        raise UserError(f"{folder} holds {present[0]}, which {script} has not written; choose another --out")


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
    """The content of config.yaml in the folder of a run.

    Raises:
        UserError: There is no such file, or it is damaged.
    """
    return read_yaml(folder / "config.yaml", "put an intact copy there, or choose another folder")


def saved_config(
    folder: Path, config_type: type[Config], *, script: str, older: Mapping[str, Any] | None = None, **changes: Any
) -> Config:
    """The configuration of the run in a folder, checked as on the command line, with changes.

    The error names the ``script`` that makes such runs. ``older`` says what a field was in runs from before it was an
    option, where that is not its default.

    Raises:
        UserError: The folder holds no run, or its config.yaml is damaged or has a value that is not allowed.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} holds no run (config.yaml is missing); train one: python -m {script} train")
    known = {field.name for field in fields(config_type)}  # type: ignore[arg-type]
    # the weights are loaded: where they started does not matter any more
    values = dict(older or {}) | saved_options(folder) | {"out": folder, "init_from": None} | changes
    try:
        return configuration(config_type, {name: value for name, value in values.items() if name in known})
    except OptionError as error:
        raise UserError(f"{path}: {error}; put the value of the training back, or train again") from error


def _present(folder: Path, *more: str) -> list[str]:
    return [name for name in (*_FILES, *_FOLDERS, *more) if os.path.lexists(folder / name)]


def _hold(folder: Path) -> None:
    """Lock a folder for this process, and remove what killed ones have left half written."""
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
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return  # where nothing can be written, nobody writes; a run that is complete there can still be read
        raise unwritable(folder, error) from error
    _held[folder] = lock
    for place in ("", "checkpoints/", "figures/"):
        for partial in folder.glob(f"{place}.*.partial"):
            partial.unlink(missing_ok=True)


def _remove_run(folder: Path, present: Sequence[str]) -> None:
    """Remove what a run of ours has written; anything else stays, and so does what a symbolic link points to."""
    if "config.yaml" not in present:
        raise UserError(f"{folder} holds {present[0]} but no config.yaml: no run of ours; choose another --out")
    if not saved_options(folder).keys() >= _SIGNATURE:
        raise UserError(f"{folder / 'config.yaml'} was not written by these scripts; choose another --out")
    # config.yaml at last: if this is interrupted, the rest can still be told to be ours
    for path in (*_below(folder), *(folder / name for name in reversed(_FILES))):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
    for name in _FOLDERS:
        with suppress(OSError):  # something of somebody else's is in it
            (folder / name).rmdir()


def _below(folder: Path) -> Iterator[Path]:
    """Files of a run in its folders."""
    for path in (path for pattern in _BELOW for path in folder.glob(pattern)):
        if not path.parent.is_symlink() and (path.suffix != ".png" or drawn_here(path)):
            yield path


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain numbers and strings, for YAML."""
    plain: dict[str, Any] = json.loads(json.dumps(options, default=str))
    return plain


def _check_same(folder: Path, wanted: Mapping[str, Any], defaults: Mapping[str, Any], *, resume: bool) -> None:
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} holds results but no config.yaml; choose another --out")
    found = {**defaults, **saved_options(folder)}
    differing = sorted(
        f"{name} {found.get(name)} instead of {to}" for name, to in wanted.items() if found.get(name) != to
    )
    if differing:
        raise UserError(
            f"{folder} holds a run of another configuration ({', '.join(differing)}); choose another --out, or "
            f"pass --overwrite to remove that run"
        )
    if not resume:
        raise UserError(f"{folder} holds this run already; pass --resume to continue it, or --overwrite to start again")
