"""Measurements in stages, in processes that may fail, hang or be ended without harm to the rest."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch

from experiments.report.statistics import Row


@dataclass(frozen=True)
class Result:
    """Rows of a table, and problems on the way, as tracebacks or sentences."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """A measurement: the table of its rows, its name, its function, and its time limit in seconds."""

    table: str
    name: str
    measure: Callable[[], Result]
    seconds: float = 60.0


@dataclass(frozen=True)
class Stage:
    """Items, their common time limit in seconds, and the number of processes that share them."""

    name: str
    items: Sequence[Item]
    seconds: float
    processes: int = 1


def run_stage(stage: Stage, report: Callable[[Item, Result], None], *, deadline: float) -> None:
    """Run the items of a stage in order and report each as soon as it ends.

    Items run in forked processes. A process whose item failed on a GPU ends, since after most errors it cannot use the
    GPU any more. The calling process must not have used a GPU.

    Args:
        stage: Items to run.
        report: Function that this process calls with an item and its result.
        deadline: Time by ``time.monotonic()`` at which everything ends, unless the limit of the stage is earlier.
    """
    deadline = min(deadline, time.monotonic() + stage.seconds)
    waiting, workers = deque(range(len(stage.items))), list[_Worker]()
    try:
        while waiting or any(worker.busy for worker in workers):
            if time.monotonic() > deadline:
                _skip(stage, waiting, report)
            while waiting and (idle := _idle_worker(stage, workers)) is not None:
                idle.begin(waiting.popleft())
            busy = {worker.connection: worker for worker in workers if worker.busy}
            for connection in wait(list(busy), timeout=0.1):
                worker = busy.pop(cast(Any, connection))  # wait() returns the connections that it was given
                report(worker.item, worker.result())
            for worker in busy.values():
                if (reason := worker.overdue(deadline)) is not None:
                    item = worker.item
                    worker.end()
                    report(item, Result(problems=[reason]))
            workers = [worker for worker in workers if not worker.ended]
    finally:
        for worker in workers:
            worker.end()


def _skip(stage: Stage, waiting: deque[int], report: Callable[[Item, Result], None]) -> None:
    while waiting:
        reason = f"skipped: the time of '{stage.name}' ({stage.seconds:.0f} s, or the rest of the whole time) is over"
        report(stage.items[waiting.popleft()], Result(problems=[reason]))


class _Worker:
    """A process that measures items, one at a time."""

    def __init__(self, stage: Stage) -> None:
        context = multiprocessing.get_context("fork")  # the child has the closures and imported modules of this process
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(stage, other))
        self.process.start()
        other.close()
        self.items, self.busy, self.ended, self.begun = stage.items, False, False, 0.0
        self.item = stage.items[0]

    def begin(self, index: int) -> None:
        """Begin the measurement of an item."""
        self.item, self.begun, self.busy = self.items[index], time.monotonic(), True
        self.connection.send(index)

    def result(self) -> Result:
        """Receive the result, or a problem if the process died."""
        self.busy, usable = False, False
        try:
            result: Result
            result, usable = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(5)
            result = Result(problems=[f"the process died, exit code {self.process.exitcode}"])
        if not usable:
            self.end()
        return result

    def overdue(self, deadline: float) -> str | None:
        """Return the reason to end the process; None without one."""
        now = time.monotonic()
        if now > self.begun + self.item.seconds:
            return f"ended: it took more than its {self.item.seconds:.0f} s"
        return f"ended after {now - self.begun:.0f} s: the time of its stage is over" if now > deadline else None

    def end(self) -> None:
        """End the process."""
        self.busy, self.ended = False, True
        self.process.kill()
        self.process.join(5)
        self.connection.close()


def _idle_worker(stage: Stage, workers: list[_Worker]) -> _Worker | None:
    for worker in workers:
        if not worker.busy and not worker.ended:
            return worker
    if sum(not worker.ended for worker in workers) >= stage.processes:
        return None
    workers.append(_Worker(stage))
    return workers[-1]


def _serve(stage: Stage, connection: Connection) -> None:
    if stage.processes > 1:  # more threads than cores wait for each other most of the time
        torch.set_num_threads(1)
    while True:
        try:
            index = connection.recv()
        except EOFError:
            return
        usable = True
        try:
            result = stage.items[index].measure()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception:
            result, usable = Result(problems=[traceback.format_exc()]), not torch.cuda.is_initialized()
        connection.send((result, usable))
        if not usable:
            return
