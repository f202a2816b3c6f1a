"""Measurements in stages, in processes that may fail, hang or be ended without taking the others along."""

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
    """Rows of a table, and what went wrong on the way, as tracebacks or sentences."""

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Item:
    """A measurement: the table of its rows, its name, a function, and the seconds after which it is ended."""

    table: str
    name: str
    measure: Callable[[], Result]
    seconds: float = 60.0


@dataclass(frozen=True)
class Stage:
    """Items, the seconds after which none begins and all are ended, and the number of processes that share them."""

    name: str
    items: Sequence[Item]
    seconds: float
    processes: int = 1


def run_stage(stage: Stage, report: Callable[[Item, Result], None], *, deadline: float) -> None:
    """Run the items of a stage in order and report each as soon as it ends.

    Items run in forked processes. One whose item failed on a GPU goes on with no other, since after most errors a
    process cannot use the GPU any more. The calling process must not have used a GPU.

    Args:
        stage: What to run.
        report: Called in this process with an item and its result.
        deadline: Time by ``time.monotonic()`` at which all ends, where the limit of the stage is not before it.
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
                worker = busy.pop(cast(Any, connection))  # of the connections that were passed
                report(worker.item, worker.result())
            for worker in busy.values():
                if (why := worker.overdue(deadline)) is not None:
                    item = worker.item
                    worker.end()
                    report(item, Result(problems=[why]))
            workers = [worker for worker in workers if not worker.ended]
    finally:
        for worker in workers:
            worker.end()


def _skip(stage: Stage, waiting: deque[int], report: Callable[[Item, Result], None]) -> None:
    while waiting:
        why = f"skipped: the time of '{stage.name}' ({stage.seconds:.0f} s, or what was left of all) is over"
        report(stage.items[waiting.popleft()], Result(problems=[why]))


class _Worker:
    """A process that measures items, one at a time."""

    def __init__(self, stage: Stage) -> None:
        context = multiprocessing.get_context("fork")  # closures, and all that is imported, come along
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(stage, other))
        self.process.start()
        other.close()
        self.items, self.busy, self.ended, self.begun = stage.items, False, False, 0.0
        self.item = stage.items[0]

    def begin(self, index: int) -> None:
        """Let it measure an item."""
        self.item, self.begun, self.busy = self.items[index], time.monotonic(), True
        self.connection.send(index)

    def result(self) -> Result:
        """Receive its answer, or that it died."""
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
        """Return why it is to be ended; None where it is not."""
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
