"""Many runs at once, in processes of this machine and of a Dask cluster: what comes back, and how they end."""

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from experiments.files import UserError
from experiments.parallel import run_all

ROOT = Path(__file__).parents[2]


class Place:
    """A configuration of a run in a folder."""

    def __init__(self, out: Path) -> None:
        self.out = out


def run_or_fail(config: Place) -> dict[str, float]:
    number = int(config.out.name)
    if number == 1:
        raise UserError("it is not possible")
    if number == 2:
        raise ZeroDivisionError("a mistake")
    return {"square": number**2, "threads": torch.get_num_threads(), "here": os.getpid() == int(config.out.parent.name)}


@pytest.mark.parametrize("engine", ["one", "two", "cluster"])
def test_metrics_by_key_from_processes_of_one_thread_and_the_names_of_those_that_fail(engine: str) -> None:
    where: dict[str, Any] = {"workers": 2 if engine == "two" else 1}
    place = Path("folder", str(os.getpid()))
    if engine == "cluster":
        distributed = pytest.importorskip("distributed")
        cluster = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None)
        where["cluster"] = cluster.scheduler_address
    torch.set_num_threads(2)
    try:
        found = run_all(run_or_fail, {name: Place(place / name) for name in "543"}, progress=False, **where)
        with pytest.raises(UserError) as error:
            run_all(run_or_fail, {name: Place(place / name) for name in "0123"}, progress=False, **where)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
        if engine == "cluster":
            cluster.close()
    here = engine == "one"
    assert found == {name: {"square": int(name) ** 2, "threads": 1, "here": here} for name in "543"}
    assert list(found) == ["5", "4", "3"]
    for said in ("2 of 4 trainings failed", f"{place / '1'}: it is not possible", f"{place / '2'}: ZeroDivisionError"):
        assert said in str(error.value)


def resident(blocks: int) -> dict[str, float]:
    """Megabytes that the process holds at the beginning; afterwards it takes and frees many small blocks."""
    before = psutil.Process().memory_info().rss / 1e6
    held = [torch.ones(100_000) for _ in range(blocks)]
    return {"mb": before, "held": float(len(held))}


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator than glibc's")
def test_a_worker_returns_the_memory_of_a_run() -> None:
    found = run_all(resident, {i: blocks for i, blocks in enumerate((1, 1, 1000, 1, 1))}, workers=2, progress=False)
    sizes = [metrics["mb"] for metrics in found.values()]
    assert max(sizes[3:]) < sizes[1] + 200  # the run before took 400 MB


def killed(number: int) -> dict[str, float]:
    """End like a process that the system kills, as memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {"number": float(number)}


@pytest.mark.skipif(os.name != "posix", reason="no signals")
def test_a_worker_that_is_killed_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"a worker was killed.*2 trainings.*--resume and fewer --workers"):
        run_all(killed, {number: number for number in range(2)}, workers=2, progress=False)
