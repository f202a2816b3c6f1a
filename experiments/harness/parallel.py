"""Many trainings at once, in processes of one thread, of this machine or of a cluster.

Ctrl-C and SIGTERM reach the process that starts the trainings; it starts no more of them and passes the signal on to
its workers, whose trainings finish their epoch and leave a checkpoint. Workers end when that process is gone.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from experiments.files import UserError
from experiments.harness.cluster import Cluster, trainings_on

__all__ = ["run_all"]

Key = TypeVar("Key", bound=Hashable)
Config = TypeVar("Config")
Metrics = dict[str, float]

# Environment of the workers. glibc gives large blocks back to the system when they are freed; fetching them again at
# every training step costs a sixth of its time. Other allocators do not know these variables.
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}


def run_all(
    run: Callable[[Config], Metrics],
    configs: Mapping[Key, Config],
    *,
    workers: int,
    cluster: Cluster | None = None,
    progress: bool = True,
    describe: Callable[[Key, Metrics], str] = lambda key, _: str(key),
) -> dict[Key, Metrics]:
    """Run every configuration, in this order: their metrics, by the keys of the configurations.

    One worker is this process itself; a cluster has workers of its own. ``describe`` makes the text beside the bar
    after a run has finished.

    Raises:
        KeyboardInterrupt: Stopped by Ctrl-C or SIGTERM; the runs in progress leave their checkpoints.
        UserError: That of a run, a worker was killed, or there is no such cluster; see :func:`trainings_on`.
    """
    metrics: dict[Key, Metrics] = {}
    with tqdm(total=len(configs), unit="run", disable=not progress) as bar, _sigterm_as_ctrl_c():
        if cluster is not None:
            finished = _on_cluster(run, configs, cluster, bar)
        else:
            finished = _serially(run, configs) if workers == 1 else _in_processes(run, configs, workers, bar)
        try:
            with closing(finished):
                for key, found in finished:
                    metrics[key] = found
                    bar.update()
                    bar.set_postfix_str(describe(key, found))
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted; {len(metrics)} of {len(configs)} trainings are finished, and the same command with "
                f"--resume continues from there"
            ) from None
    return {key: metrics[key] for key in configs}


def _serially(
    run: Callable[[Config], Metrics], configs: Mapping[Key, Config]
) -> Generator[tuple[Key, Metrics], None, None]:
    threads = torch.get_num_threads()
    try:
        for key, config in configs.items():
            torch.set_num_threads(1)
            yield key, run(config)
    finally:
        torch.set_num_threads(threads)


def _in_processes(
    run: Callable[[Config], Metrics], configs: Mapping[Key, Config], workers: int, bar: Any
) -> Generator[tuple[Key, Metrics], None, None]:
    others, running = set(multiprocessing.active_children()), dict[Future[Metrics], Key]()
    context = multiprocessing.get_context("spawn")
    for name, value in _KEEP_MEMORY.items():
        os.environ.setdefault(name, value)  # what the user has set himself stays
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            # not all at once: workers fetch runs ahead, and would train these too after Ctrl-C
            yield from _as_completed(
                lambda config: pool.submit(_run_in_worker, run, config), configs, running, most=workers, bar=bar
            )
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            started = [process for process in multiprocessing.active_children() if process not in others]
            if isinstance(error, BrokenProcessPool):
                for process in started:
                    process.kill()
                raise UserError(
                    "a worker process was killed, perhaps for want of memory; try fewer --workers, the same command "
                    "with --resume continues"
                ) from error
            _stop(started, running)
            raise


def _on_cluster(
    run: Callable[[Config], Metrics], configs: Mapping[Key, Config], cluster: Cluster, bar: Any
) -> Generator[tuple[Key, Metrics], None, None]:
    with trainings_on(cluster) as submit:
        yield from _as_completed(lambda config: submit(run, config), configs, {}, most=len(configs), bar=bar)


def _as_completed(
    submit: Callable[[Config], Future[Metrics]],
    configs: Mapping[Key, Config],
    running: dict[Future[Metrics], Key],
    *,
    most: int,
    bar: Any,
) -> Generator[tuple[Key, Metrics], None, None]:
    """Submit every configuration, with ``most`` of them ``running`` at a time: the metrics as they come."""
    waiting = deque(configs.items())
    while waiting or running:
        while waiting and len(running) < most:
            key, config = waiting.popleft()
            with _signals_held():
                running[submit(config)] = key
        done, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
        if sys.stderr.isatty():
            bar.refresh()  # the clock goes on
        for future in done:
            yield running.pop(future), future.result()


def _stop(processes: list[BaseProcess], running: Mapping[Future[Metrics], object]) -> None:
    """Let the trainings in progress leave their checkpoints; another Ctrl-C or SIGTERM ends them at once."""
    if any(not future.done() for future in running):
        print("\nstopping after these epochs; press Ctrl-C again to stop at once", file=sys.stderr)
    while True:
        try:
            for process in processes:
                process.terminate()
            wait(running)
            return
        except KeyboardInterrupt:
            continue


class _Worker:
    """What the signal handler of a worker has to know."""

    busy = stopped = False


def _start_worker() -> None:
    """Leave Ctrl-C to the parent, which passes it on as SIGTERM, and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop_worker)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _stop_worker(*_: object) -> None:
    _Worker.stopped = True
    # between two runs an exception would end the worker, and with it the whole pool
    if _Worker.busy:
        raise KeyboardInterrupt


def _end_with_parent() -> None:
    """However the parent ends, kill -9 too: its end closes the pipe that this thread waits for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_in_worker(run: Callable[[Config], Metrics], config: Config) -> Metrics:
    _Worker.busy = True
    try:
        if _Worker.stopped:
            raise KeyboardInterrupt
        torch.set_num_threads(1)
        return run(config)
    finally:
        _Worker.busy = False
        _return_memory()


def _return_memory() -> None:
    """Give the memory of a finished run back to the system: blocks that are kept for one run do not fit the next."""
    gc.collect()  # trainer, callbacks and network refer to each other
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:  # of glibc
        trim(0)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does; only the main thread may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back, in processes started inside too, until these know what to do about them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
