"""Many trainings, each on one thread of a process: joblib's on this machine, or a worker's of a Dask cluster."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import traceback
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any, TypeVar

import torch
from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from tqdm import tqdm

from experiments.files import UserError

Key = TypeVar("Key", bound=Hashable)
Config = TypeVar("Config")
Metrics = dict[str, float]
Outcome = tuple[Any, Metrics | str]  # a key, and the metrics of its run or why it failed

# Environment of the workers. glibc gives large blocks back to the system when they are freed; fetching them again at
# every training step costs a sixth of its time. Other allocators do not know these variables.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}
_alone = threading.Lock()  # threads of a Dask worker would share their random numbers


def run_all(
    run: Callable[[Config], Metrics],
    configs: Mapping[Key, Config],
    *,
    workers: int,
    cluster: str | None = None,
    progress: bool = True,
) -> dict[Key, Metrics]:
    """Run every configuration, in this order, and return the metrics by the keys of the configurations.

    One worker is this process itself; a ``cluster``, the address of a Dask scheduler, has its workers. When runs fail,
    all other ones go on to their end.

    Raises:
        UserError: Runs have failed, which are named by their folders, or a worker was killed.
    """
    metrics: dict[Key, Metrics] = {}
    failed: dict[str, list[str]] = {}
    finished = _here(run, configs, workers) if cluster is None else _on_cluster(run, configs, cluster)
    with tqdm(total=len(configs), unit="run", disable=not progress) as bar:
        for key, outcome in finished:
            if isinstance(outcome, str):
                failed.setdefault(outcome, []).append(str(getattr(configs[key], "out", key)))
            else:
                metrics[key] = outcome
            bar.update()
    if failed:
        said = "; ".join(f"{', '.join(folders)}: {reason}" for reason, folders in failed.items())
        raise UserError(
            f"{len(configs) - len(metrics)} of {len(configs)} trainings failed ({said}); the others are finished, and "
            f"the same command with --resume repeats these alone"
        )
    return {key: metrics[key] for key in configs}


def _here(run: Callable[[Config], Metrics], configs: Mapping[Key, Config], workers: int) -> Iterator[Outcome]:
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # what the user has set himself stays
    calls = (delayed(_outcome)(run, key, config, Path.cwd()) for key, config in configs.items())
    with warnings.catch_warnings(), parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
        # a worker whose memory has grown ends behind its training, and another one takes its place
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor")
        # none is fetched ahead: a worker whose study is gone ends its training and begins no other one
        try:
            yield from Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")(calls)
        except TerminatedWorkerError:
            raise UserError(
                f"a worker was killed, as happens where {workers} trainings together need more memory than there is; "
                f"the same command with --resume and fewer --workers goes on"
            ) from None


def _on_cluster(run: Callable[[Config], Metrics], configs: Mapping[Key, Config], address: str) -> Iterator[Outcome]:
    # not joblib's backend for Dask (1.6): it waits forever for a training whose workers have died
    from distributed import Client, as_completed

    with Client(address, set_as_default=False) as client:
        futures = {
            client.submit(_outcome, run, key, config, Path.cwd(), pure=False): key for key, config in configs.items()
        }
        for future in as_completed(futures, loop=client.loop):
            lost = future.exception()  # the worker has died too often, or lacks a module
            yield future.result() if lost is None else (futures[future], f"{type(lost).__name__}: {lost}")


def _outcome(run: Callable[[Config], Metrics], key: Key, config: Config, folder: Path) -> Outcome:
    """Run on one thread, in the folder where the study was started."""
    threads = torch.get_num_threads()
    with _alone, chdir(folder):
        torch.set_num_threads(1)
        try:
            return key, run(config)
        except UserError as error:
            return key, str(error)
        except Exception as error:
            traceback.print_exc()
            return key, f"{type(error).__name__}: {error}"
        finally:
            torch.set_num_threads(threads)
            gc.collect()  # trainer, callbacks and network refer to each other
            # blocks that are kept for one run do not fit the next; of glibc
            getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
