"""Many trainings at once, in processes of one thread."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from tqdm import tqdm

__all__ = ["run_all"]

Key = TypeVar("Key", bound=Hashable)
Config = TypeVar("Config")
Metrics = dict[str, float]

# glibc gives large blocks back to the system when they are freed; fetching them again at every training step costs a
# sixth of its time. Other allocators do not know these variables.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}


def run_all(
    run: Callable[[Config], Metrics],
    configs: Mapping[Key, Config],
    *,
    workers: int,
    progress: bool = True,
    describe: Callable[[Key, Metrics], str] = lambda key, _: str(key),
) -> dict[Key, Metrics]:
    """Run every configuration: their metrics, by the keys of the configurations.

    Args:
        run: A script's ``run``, a function of a module; it resumes by itself what its configuration says.
        configs: Configurations; they are started in this order.
        workers: Processes; 1 is this one.
        progress: Show a bar over the runs.
        describe: Text beside the bar after a run has finished.

    Raises:
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; the runs in progress leave their checkpoints.
    """
    metrics: dict[Key, Metrics] = {}
    with tqdm(total=len(configs), unit="run", disable=not progress) as bar:
        finished = _serially(run, configs) if workers == 1 else _in_processes(run, configs, workers, bar)
        for key, found in finished:
            metrics[key] = found
            bar.update()
            bar.set_postfix_str(describe(key, found))
    return {key: metrics[key] for key in configs}


def _serially(run: Callable[[Config], Metrics], configs: Mapping[Key, Config]) -> Iterator[tuple[Key, Metrics]]:
    threads = torch.get_num_threads()
    try:
        for key, config in configs.items():
            yield key, _on_one_thread(run, config)
    finally:
        torch.set_num_threads(threads)


def _in_processes(
    run: Callable[[Config], Metrics], configs: Mapping[Key, Config], workers: int, bar: Any
) -> Iterator[tuple[Key, Metrics]]:
    with _environment(_KEEP_MEMORY), ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_on_one_thread, run, config): key for key, config in configs.items()}
        try:
            with _terminated_together():
                for future in _as_completed(futures, bar):
                    yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _on_one_thread(run: Callable[[Config], Metrics], config: Config) -> Metrics:
    torch.set_num_threads(1)
    return run(config)


@contextmanager
def _terminated_together() -> Iterator[None]:
    """Pass SIGTERM on to the processes, which Ctrl-C reaches by itself, and end as after Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def stop(*_: object) -> None:
        for process in multiprocessing.active_children():
            process.terminate()
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Environment of the processes started inside; what the user has set himself stays."""
    added = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _as_completed(futures: Mapping[Future[Any], Any], bar: Any) -> Iterator[Future[Any]]:
    """Futures as they finish; the bar's clock goes on meanwhile."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
        if sys.stderr.isatty():
            bar.refresh()
        yield from done
