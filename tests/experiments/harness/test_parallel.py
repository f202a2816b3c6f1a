"""Many runs at once, in processes of this machine and of a Dask cluster: what comes back, and how they end."""

import ctypes
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from experiments.files import UserError
from experiments.harness import parallel
from experiments.harness.options import StudyOptions
from experiments.harness.parallel import run_all
from tests.experiments.graph.tiny_graphs import write_citations

ROOT = Path(__file__).parents[3]
LIMIT = 240.0  # seconds until something is taken not to happen; no test waits for it to pass


def wait_for(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
    return found


def ended(processes: list[psutil.Process]) -> bool:
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


# A cluster, started by the commands of the page on another port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[psutil.Process]]]:
    """The address of a scheduler, and the processes that belong to it."""
    distributed = pytest.importorskip("distributed")
    page = (ROOT / "docs" / "running_on_more.md").read_text().replace("\\\n", "")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    commands = re.findall(r"^python -m (dask .*)$", page.replace("8786", port), re.MULTILINE)
    assert len(commands) == 2
    folder, started = tmp_path_factory.mktemp("cluster"), []
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    try:
        with (folder / "log").open("w") as log:
            for command in commands:
                line = [sys.executable, "-m", *shlex.split(command)]
                started.append(psutil.Popen(line, cwd=folder, env=environment, stdout=log, stderr=log))
        address = f"tcp://127.0.0.1:{port}"
        with distributed.Client(address, timeout=LIMIT, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            yield address, [process for one in started for process in (one, *one.children(recursive=True))]
    finally:
        for process in [process for one in started for process in (one, *one.children(recursive=True))]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait()


def test_the_cluster_of_the_page_listens_to_this_machine_alone(cluster: tuple[str, list[psutil.Process]]) -> None:
    address, processes = cluster
    found = [socket for one in processes for socket in one.net_connections() if socket.status == psutil.CONN_LISTEN]
    assert len(found) >= 5  # the scheduler, two workers and what restarts them
    assert {socket.laddr.ip for socket in found} == {"127.0.0.1"}
    assert int(address.rpartition(":")[2]) in {socket.laddr.port for socket in found}


# What comes back


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


def die_once(config: Place) -> dict[str, float]:
    """The first attempt kills its process."""
    if not config.out.exists():
        config.out.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": 2.0}


@pytest.mark.parametrize("engine", ["one", "two", "cluster"])
def test_metrics_by_key_from_processes_of_one_thread_and_the_names_of_those_that_fail(
    engine: str, request: pytest.FixtureRequest
) -> None:
    where: dict[str, Any] = {"workers": 2 if engine == "two" else 1}
    if engine == "cluster":
        where["cluster"] = request.getfixturevalue("cluster")[0]
    place = Path("folder", str(os.getpid()))
    torch.set_num_threads(2)
    try:
        found = run_all(run_or_fail, {name: Place(place / name) for name in "543"}, progress=False, **where)
        with pytest.raises(UserError) as error:
            run_all(run_or_fail, {name: Place(place / name) for name in "0123"}, progress=False, **where)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
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


def test_a_killed_worker_is_replaced_on_a_cluster_and_said_here(
    cluster: tuple[str, list[psutil.Process]], tmp_path: Path
) -> None:
    found = run_all(die_once, {0: Place(tmp_path / "0")}, workers=1, cluster=cluster[0], progress=False)
    assert found == {0: {"attempt": 2.0}}
    with pytest.raises(UserError, match=r"^a worker process was killed.*--workers"):
        run_all(die_once, {i: Place(tmp_path / str(i)) for i in range(3)}, workers=2, progress=False)


def test_a_table_from_a_cluster_is_that_of_this_process(
    cluster: tuple[str, list[psutil.Process]], tmp_path: Path
) -> None:
    from experiments.graph.studies import table  # not in the workers of the other tests

    write_citations(tmp_path)
    tiny = {"num_samples": 3, "max_epochs": 2}
    sizes: dict[str, Any] = {"seeds": 1, "levels": ("cora",), "progress": False, "changes": tiny}
    found = []
    for name, where in (("here", {"workers": 1}), ("there", {"cluster": cluster[0]})):
        places = {"data_root": tmp_path, "out": tmp_path / name, "results": tmp_path / f"{name}-results"}
        metrics = table(StudyOptions(name="bam1", **sizes, **places, **where))
        found.append({name: value for name, value in metrics.items() if not name.endswith("step_ms")})
    assert found[0] == found[1]


# Clusters that there are not


@pytest.mark.parametrize(
    ("installed", "said"), [(True, "no Dask scheduler answers at cluster"), (False, "is not installed")]
)
def test_no_scheduler_answers(installed: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(parallel, "_ANSWER", 0.3)
    if not installed:
        monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=said):
        run_all(die_once, {0: Place(Path("0"))}, workers=1, cluster="tcp://127.0.0.1:1", progress=False)


# Ctrl-C


SWEEP = f"""
import signal, sys
from pathlib import Path
from experiments.harness.cli import run_script
from experiments.harness.options import SweepOptions
from experiments.harness.parallel import run_all
from {__name__} import Place, wait_long

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    places = {{i: Place(Path(sys.argv[1], str(i))) for i in range(4)}}
    run = lambda config: run_all(wait_long, places, workers=2, progress=False)
    raise SystemExit(run_script(SweepOptions, run, name="test", arguments=[]))
"""


def wait_long(config: Place) -> dict[str, float]:
    config.out.write_text(str(os.getpid()))
    time.sleep(10 * LIMIT)
    return {}


def test_ctrl_c_ends_a_sweep_with_all_its_processes(tmp_path: Path) -> None:
    script, places = tmp_path / "script.py", tmp_path / "places"
    script.write_text(SWEEP)
    places.mkdir()
    line, environment = [sys.executable, str(script), str(places)], os.environ | {"PYTHONPATH": str(ROOT)}
    options: dict[str, Any] = {"cwd": ROOT, "env": environment, "start_new_session": True}
    with psutil.Popen(line, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            wait_for(lambda: process.poll() is not None or len(list(places.iterdir())) == 2)
            workers = process.children(recursive=True)
            os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
            _, errors = process.communicate(timeout=LIMIT)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, errors) == (130, "\ninterrupted; the same command with --resume continues\n")
    wait_for(lambda: ended(workers))
    assert {path.name for path in places.iterdir()} == {"0", "1"}
