"""Trainings on a Dask cluster: the same numbers, whatever happens to its workers, and which workers are refused."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from experiments.files import UserError
from experiments.graph import table
from experiments.graph.train import GraphConfig
from experiments.graph.train import run as run_graph
from experiments.harness import cluster as cluster_module
from experiments.harness.checkpoints import read_run
from experiments.harness.cluster import Cluster, stop_asked, trainings_on
from experiments.harness.folder import FolderInUseError, exclusive, holder
from experiments.harness.options import RunOptions, SweepOptions
from experiments.harness.parallel import run_all
from experiments.harness.results import read_metrics, write_metrics
from experiments.harness.sweep import Sweep
from tests.experiments.graph.tiny_graphs import write_citations

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[3]
EPOCHS = 40
LIMIT = 600.0  # seconds until something is taken not to happen; no test waits for it to pass


def wait_for(happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


# A scheduler and its worker in threads of this process


def threads(number: int = 1) -> Any:
    options = {"processes": False, "dashboard_address": "127.0.0.1:0", "scheduler_port": 0}
    return distributed.LocalCluster(n_workers=1, threads_per_worker=number, **options)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with threads() as cluster:
        yield cluster.scheduler_address


def square(number: float) -> dict[str, float]:
    return {"square": number**2}


def fail(number: float) -> dict[str, float]:
    raise UserError(f"{number} is not possible")


def wait_to_be_stopped(path: Path) -> dict[str, float]:
    """Say that one runs, and that one was stopped."""
    path.touch()
    wait_for(stop_asked)
    path.with_suffix(".stopped").touch()
    raise KeyboardInterrupt


def wait_for_the_folder(path: Path) -> dict[str, float]:
    """The folder is free at the second attempt."""
    if not path.exists():
        path.touch()
        raise FolderInUseError("another has it")
    return {}


def test_metrics_by_key_in_the_order_of_the_configurations(address: str, tmp_path: Path) -> None:
    configs = {name: float(place) for place, name in enumerate("edcba")}
    found = run_all(square, configs, workers=1, cluster=Cluster(address, tmp_path), progress=False)
    assert list(found.items()) == [(name, {"square": number**2}) for name, number in configs.items()]


def test_an_error_of_a_run_is_that_of_the_sweep(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^1\.5 is not possible$"):
        run_all(fail, {0: 1.5}, workers=1, cluster=Cluster(address, tmp_path), progress=False)


def test_runs_that_nobody_waits_for_stop(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), trainings_on(Cluster(address, tmp_path)) as submit:  # noqa: PT012
        submit(wait_to_be_stopped, tmp_path / "first")
        submit(wait_to_be_stopped, tmp_path / "second")
        wait_for((tmp_path / "first").exists)
        raise KeyboardInterrupt
    wait_for((tmp_path / "first.stopped").exists)
    assert "the trainings in progress stop after these epochs" in capsys.readouterr().err
    # the next sweep has the worker for itself
    run_all(square, {0: 1.0}, workers=1, cluster=Cluster(address, tmp_path), progress=False)
    assert not (tmp_path / "second").exists()
    assert not stop_asked()


def test_a_run_waits_for_its_folder(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(address, tmp_path)
    run_all(wait_for_the_folder, {0: tmp_path / "used"}, workers=1, cluster=cluster, progress=False)
    monkeypatch.setattr(cluster_module, "_PATIENCE", 0.0)
    with pytest.raises(UserError, match="another has it"):
        run_all(wait_for_the_folder, {0: tmp_path / "again"}, workers=1, cluster=cluster, progress=False)


def test_a_training_that_is_asked_to_stop_leaves_a_checkpoint(tmp_path: Path) -> None:
    write_citations(tmp_path)
    config = GraphConfig(dataset="cora", data_root=tmp_path, out=tmp_path / "run", max_epochs=9, progress=False)
    reset = cluster_module._stop_asked.set(lambda: True)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_graph(config)
    finally:
        cluster_module._stop_asked.reset(reset)
    assert read_run(tmp_path / "run" / "checkpoints" / "last.ckpt")["epoch"] == 0


@pytest.mark.parametrize(
    ("name", "answers", "said"),
    [
        (
            "_versions",
            [{"torch": "2.6.0"}, {"torch": "2.7.0"}],
            r"worker \S+ has torch 2\.7\.0, here 2\.6\.0;",
        ),
        ("holder", ["process 1", "another process"], r"worker \S+ does not see \S+out and .* --out on a file system"),
    ],
)
def test_other_workers_are_refused(
    name: str, answers: list[Any], said: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter(answers)
    monkeypatch.setattr(cluster_module, name, lambda *_: next(left))
    with pytest.raises(UserError, match=said), trainings_on(Cluster(address, tmp_path / "out")):
        pytest.fail("the worker was accepted")


def test_a_worker_of_two_threads_is_refused(tmp_path: Path) -> None:
    refused = pytest.raises(UserError, match=r"worker \S+ runs 2 trainings at a time .* --nthreads 1")
    with threads(2) as cluster, refused, trainings_on(Cluster(cluster.scheduler_address, tmp_path)):
        pytest.fail("the worker was accepted")


@pytest.mark.parametrize("form", ["tcp://127.0.0.1:{port}", "nowhere", "smoke://127.0.0.1:{port}"])
def test_no_scheduler_answers(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = form.format(port=free.getsockname()[1])
    monkeypatch.setattr(cluster_module, "_ANSWER", 0.3)
    with pytest.raises(UserError, match=f"no Dask scheduler answers at cluster {address} within 0.3 seconds") as error:
        run_all(square, {0: 1.0}, workers=1, cluster=Cluster(address, tmp_path), progress=False)
    assert "\n" not in str(error.value)


def test_without_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"^distributed is not installed, .*'\.\[cluster\]'$"):
        run_all(square, {0: 1.0}, workers=1, cluster=Cluster("tcp://127.0.0.1:1", tmp_path), progress=False)


@dataclass(frozen=True, kw_only=True)
class Training(RunOptions):
    seed: int = 0


def leave_metrics(config: Training) -> dict[str, float]:
    """Metrics of a run: whether it is to remove what is there, and whether there was something."""
    folder = Path(str(config.out))
    found = {"overwrite": float(config.overwrite), "present": float((folder / "metrics.json").exists())}
    write_metrics(folder, found, dict.fromkeys(found, "what it says"))
    return found


def test_overwriting_removes_runs_once(address: str, tmp_path: Path) -> None:
    @exclusive
    def train(**options: Any) -> dict[str, float]:
        config = SweepOptions(out=tmp_path / "out", cluster=address, progress=False, **options)
        sweep = Sweep("levels", config, "levels").open()
        trainings = sweep.train(leave_metrics, sweep.configs(Training, {("row",): {}}, [0]))
        assert trainings.first("row").overwrite == config.overwrite
        return dict(trainings.metrics["row", 0])

    first = {"overwrite": 0.0, "present": 0.0}
    assert train(overwrite=True) == first
    assert train(resume=True)["present"] == 1
    assert train(overwrite=True) == first


# A scheduler and two workers, each a process


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler; its two workers come a few seconds later."""
    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    commands = [
        ["scheduler", "--port", "0", "--idle-timeout", "1000", *common],  # it ends also when nobody kills it
        ["worker", "--death-timeout", "60", "--nworkers", "2", "--nthreads", "1", "--memory-limit", "0", *common],
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = []
    try:
        with (tmp_path / "dask.log").open("w") as log:
            for command in commands:
                whole = [sys.executable, "-m", "dask", *command]
                options = {"cwd": tmp_path, "env": environment, "start_new_session": True}
                started.append(subprocess.Popen(whole, stdout=log, stderr=log, **options))  # type: ignore[call-overload]
        yield wait_for(lambda: _address(file))
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _address(file: Path) -> str | None:
    """The address in a scheduler's file, once it is written."""
    with suppress(OSError, ValueError):
        address: str = json.loads(file.read_text())["address"]
        return address
    return None


def table_config(folder: Path, out: str, **options: Any) -> table.TableConfig:
    sizes = {"seeds": 1, "graphs": ("cora",), "num_samples": 3, "progress": False, "workers": 1}
    places = {"data_root": folder, "out": folder / out, "results": folder / f"{out}.md"}
    return table.TableConfig(name="bam1", **(sizes | places | options))


def numbers(found: dict[str, float]) -> dict[str, float]:
    """What does not depend on the time that training takes."""
    return {name: value for name, value in found.items() if not name.endswith("step_ms")}


def test_a_table_from_two_processes_is_that_of_one_machine(processes: str, tmp_path: Path) -> None:
    write_citations(tmp_path)
    local = table.run(table_config(tmp_path, "local", max_epochs=2))  # while the workers start
    assert numbers(table.run(table_config(tmp_path, "cluster", max_epochs=2, cluster=processes))) == numbers(local)


@pytest.mark.slow
def test_a_killed_worker_costs_the_last_epochs_of_its_training(processes: str, tmp_path: Path) -> None:
    write_citations(tmp_path)
    local = table.run(table_config(tmp_path, "local", max_epochs=EPOCHS))
    command = [
        *(sys.executable, "-m", "experiments.table", "bam1", "--graphs", '["cora"]', "--seeds", "1"),
        *("--max-epochs", str(EPOCHS), "--num-samples", "3", "--checkpoint-every", "2", "--overwrite"),
        *("--cluster", processes, "--data-root", tmp_path),
        *("--out", tmp_path / "cluster", "--results", tmp_path / "cluster.md"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as sweep:
        try:
            run, before = wait_for(lambda: _kill_in_the_middle(tmp_path / "cluster" / "runs"))
            _, errors = sweep.communicate(timeout=LIMIT)
        finally:
            sweep.kill()
    assert sweep.returncode == 0, errors
    rows = len(table.TABLES["bam1"].rows)
    assert f" {rows}/{rows} " in errors  # the bar
    found = read_metrics(tmp_path / "cluster")
    assert found is not None
    assert numbers(found) == numbers(local)
    # the times of the epochs before are those that the killed worker has measured
    after = _epochs(run)
    assert 0 < len(before) < len(after)
    assert after[: len(before)] == before


def _epochs(run: Path) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = read_run(run / "checkpoints" / "last.ckpt")["callbacks"]["History"]["rows"]
    return rows


def _kill_in_the_middle(runs: Path) -> tuple[Path, list[dict[str, float]]] | None:
    """Kill a worker whose training has a checkpoint: its folder, and the epochs that it leaves."""
    for run in {path.parents[1] for path in runs.glob("*/checkpoints/last.ckpt")}:
        worker = re.match(r"process (\d+) ", holder(run))
        if worker is None:
            continue
        os.kill(int(worker[1]), signal.SIGSTOP)  # in the middle it stays
        if (run / "metrics.json").exists() or holder(run) != worker.string:
            os.kill(int(worker[1]), signal.SIGCONT)
            continue
        left = _epochs(run)
        os.kill(int(worker[1]), signal.SIGKILL)
        return run, left
    return None
