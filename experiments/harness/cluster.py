"""Trainings on the workers of a Dask cluster, which see the files of this machine.

Dask gives a training whose worker has died to another one, where it goes on from its last checkpoint. No signal reaches
a training there: when nobody waits for it any more, because its sweep was stopped or has failed, it sees that itself at
the end of an epoch, and leaves a checkpoint.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import chdir, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from experiments.files import UserError
from experiments.harness.folder import FolderInUseError, holder

__all__ = ["Cluster", "stop_asked", "trainings_on"]

_ANSWER = 20.0  # seconds that a scheduler has to answer
# Seconds that a training waits for its folder, which another training may have that nobody waits for any more: as long
# as an epoch may take, and longer than a file server holds the lock of a machine that is gone.
_PATIENCE = 600.0

_stop_asked: ContextVar[Callable[[], bool]] = ContextVar("_stop_asked", default=lambda: False)


@dataclass(frozen=True)
class Cluster:
    """The address of a Dask scheduler, and the folder of a sweep, which this process holds."""

    address: str
    folder: Path


@dataclass(frozen=True)
class _Needs:
    """What a worker must have."""

    versions: dict[str, str]
    place: Path  # paths are relative to it
    folder: Path
    holder: str  # who holds the folder


def stop_asked() -> bool:
    """Whether this is a training on a cluster that nobody waits for any more."""
    return _stop_asked.get()()


@contextmanager
def trainings_on(cluster: Cluster) -> Iterator[Callable[..., Future[Any]]]:
    """A function that gives the call of another function to the workers; at the end of the block they stop.

    Raises:
        UserError: The cluster does not answer, a worker is not fit for these trainings, or trainings were lost.
    """
    try:
        from distributed import Client, KilledWorker
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed, which cluster needs; pip install -e '.[cluster]'") from error
    try:
        client = Client(cluster.address, timeout=_ANSWER, set_as_default=False)
    except (OSError, ValueError) as error:  # a ValueError is about the address
        raise UserError(
            f"no Dask scheduler answers at cluster {cluster.address} within {_ANSWER:g} seconds ({error}); start one, "
            f"or give the address that it prints, such as tcp://host:8786"
        ) from error
    needs = _Needs(_versions(), Path.cwd(), cluster.folder, holder(cluster.folder))
    again = "the same command with --resume continues"
    # what has not ended is not wanted any more once the client is closed
    with client:
        try:
            if not client.run(_check, needs):
                print(f"{cluster.address} has no worker yet; the trainings begin when there is one", file=sys.stderr)
            submit = client.get_executor(pure=False).submit
            yield lambda run, config: submit(_run, needs, run, config)
        except KeyboardInterrupt:
            print("\nthe trainings in progress stop after these epochs, with checkpoints", file=sys.stderr)
            raise
        except KilledWorker as error:
            raise UserError(
                f"{error.allowed_failures + 1} workers died during the same training, perhaps for want of memory; give "
                f"them more, {again}"
            ) from error
        except CancelledError as error:
            raise UserError(f"the scheduler at cluster {cluster.address} is gone; start it again, {again}") from error
        except ModuleNotFoundError as error:
            raise UserError(
                f"a worker of cluster {cluster.address} has another environment ({error}); start the workers in "
                f"that of this process, with pyro-attention {needs.versions['pyro-attention']}"
            ) from error


def _versions() -> dict[str, str]:
    from pyro_attention import __version__  # of what runs, not of what is installed

    # CPU and GPU builds of torch differ after the plus sign
    found = {name: version(name).partition("+")[0] for name in ("torch", "pyro-ppl", "lightning", "numpy")}
    return {"pyro-attention": __version__} | found


def _check(needs: _Needs, dask_worker: Any) -> None:
    """Refuse a worker whose trainings would end with other numbers, or nowhere; Dask says which one it is."""
    name, found = dask_worker.address, _versions()
    differing = [f"{package} {found[package]}, here {ours}" for package, ours in needs.versions.items()
                 if found[package] != ours]  # fmt: skip
    if differing:
        raise UserError(f"worker {name} has {', '.join(differing)}; start it in the environment of this process")
    threads = dask_worker.state.nthreads
    if threads != 1:
        raise UserError(
            f"worker {name} runs {threads} trainings at a time in one process, where they would share their random "
            f"numbers; start it with --nthreads 1, and with --nworkers for more of them"
        )
    folder = needs.place / needs.folder
    if not needs.place.is_dir() or holder(folder) != needs.holder:
        raise UserError(
            f"worker {name} does not see {folder} and {needs.place} as this process does; choose an --out on a file "
            f"system that all machines share under one name, and start the command there too"
        )


def _run(needs: _Needs, run: Callable[[Any], dict[str, float]], config: Any) -> dict[str, float]:
    """What a worker does: a run on one thread, at the place where the sweep was started."""
    from distributed import get_worker

    worker = get_worker()
    _check(needs, worker)  # it may have come after the others were asked
    task = worker.state.tasks[worker.get_current_task()]
    before, reset = torch.get_num_threads(), _stop_asked.set(lambda: task.state == "cancelled")
    torch.set_num_threads(1)
    try:
        with chdir(needs.place):
            return _with_patience(run, config)
    except KeyboardInterrupt as stop:  # it would end the worker
        raise UserError(str(stop)) from stop
    finally:
        torch.set_num_threads(before)
        _stop_asked.reset(reset)


def _with_patience(run: Callable[[Any], dict[str, float]], config: Any) -> dict[str, float]:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return run(config)
        except FolderInUseError:
            if time.monotonic() > end or stop_asked():
                raise
        time.sleep(1)
