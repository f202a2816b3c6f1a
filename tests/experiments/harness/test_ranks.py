"""Trainings in two processes, as the commands start them: they equal one process with batches twice as large."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port

from experiments.graph.config import GraphConfig
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from tests.experiments.graph.tiny_graphs import write_citations
from tests.experiments.harness import in_ranks
from tests.experiments.nmt.tiny_text import write_text

ROOT = Path(__file__).parents[3]
PATIENCE = 600  # seconds after which a command hangs
SMALL = ["--hidden", "4", "--num-samples", "2", "--no-progress", "--device", "cpu"]
SEQUENCES = [*SMALL, "--vocabulary", "300", "--embedding", "4", "--beam", "1"]
needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two processes need two cores")


def options(task: str, folder: Path) -> list[str]:
    """Options of a tiny training on data in a folder."""
    if task == "graph":
        write_citations(folder)
        return [*SMALL, "--heads", "2", "--dataset", "cora", "--data-root", str(folder)]
    if task == "captioning":
        return SEQUENCES
    text = folder / "text"
    if not text.exists():
        write_text(text)
    return [*SEQUENCES, "--dataset", "own", "--text", str(text), "--layers", "1"]


def command(task: str, folder: Path, *more: str) -> list[str]:
    """Arguments of a training whose run and record are in a folder."""
    (folder / "record").mkdir(parents=True, exist_ok=True)
    return [task, str(folder / "record"), *options(task, folder.parent), "--out", str(folder / "run"), *more]


def in_processes(
    arguments: list[str], *, devices: int = 2, module: str = "tests.experiments.harness.in_ranks", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a training in new processes."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-W", "error::UserWarning:experiments", "-m", module, *arguments, "--devices", str(devices)],
        cwd=ROOT, env=inherited | {"OMP_NUM_THREADS": "1"} | variables, text=True, capture_output=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip


def losses(folder: Path) -> torch.Tensor:
    """Of every rank and step."""
    found = [json.loads(path.read_text()) for path in sorted((folder / "record").glob("*.json"))]
    return torch.tensor(found, dtype=torch.float64)


def history(folder: Path) -> list[dict[str, float]]:
    with (folder / "run" / "history.csv").open() as file:
        return [
            {name: float(value) for name, value in row.items() if name != "step_ms"} for row in csv.DictReader(file)
        ]


def numbers(folder: Path) -> dict[str, float]:
    """The metrics of a finished run, without what time it took."""
    metrics = read_metrics(folder / "run")
    assert metrics is not None
    del metrics["step_ms"]
    return metrics


def assert_same_curve(task: str, tmp_path: Path, *more: str, batch_size: int) -> None:
    """Two processes take the steps of one that has batches twice as large, to 1e-6 over 20 steps and more."""
    sizes = ([], []) if task == "graph" else (["--batch-size", str(batch_size)], ["--batch-size", str(2 * batch_size)])
    for name, devices, size in (("two", 2, sizes[0]), ("one", 1, sizes[1])):
        arguments = command(task, tmp_path / name, "--dropout", "0", *more, *size)
        if devices == 1:  # here, where torch is imported already
            assert in_ranks.main(*arguments) == 0
        else:
            done = in_processes(arguments, devices=devices)
            assert (done.returncode, done.stderr) == (0, "")
    two, one = (losses(tmp_path / name) for name in ("two", "one"))
    assert len(two) == 2
    assert one.size(1) >= 20
    torch.testing.assert_close(two.mean(0), one[0], rtol=0, atol=1e-6)
    for rows in zip(history(tmp_path / "two"), history(tmp_path / "one"), strict=True):
        assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    assert numbers(tmp_path / "two") == pytest.approx(numbers(tmp_path / "one"), abs=1e-6)


@needs_two_cores
def test_two_processes_translate_as_one_with_batches_twice_as_large(tmp_path):
    # 24 pairs: batches of 10, 10 and 4
    assert_same_curve("translation", tmp_path, "--max-epochs", "7", batch_size=5)


@pytest.mark.slow
@needs_two_cores
@pytest.mark.parametrize(
    ("task", "more"),
    [
        # 23 images: batches of 10, 10 and 3, of which the processes have 2 and 1
        ("captioning", ["--guide", "categorical_enum", "--max-epochs", "7"]),
        # one batch, the whole graph, in every process
        ("graph", ["--guide", "soft", "--max-epochs", "20"]),
    ],
)
def test_two_processes_train_as_one(task, more, tmp_path):
    assert_same_curve(task, tmp_path, *more, batch_size=5)


RANDOM = ["--guide", "weibull", "--max-epochs", "6"]


def random_options(task: str) -> list[str]:
    return RANDOM if task == "graph" else [*RANDOM, "--batch-size", "5", "--patience", "9"]


@pytest.mark.slow
@needs_two_cores
@pytest.mark.parametrize(("task", "rank"), [("translation", 0), ("captioning", 1), ("graph", 1)])
def test_a_killed_training_of_two_processes_ends_with_the_same_numbers(task, rank, tmp_path):
    more = random_options(task)
    assert in_processes(command(task, tmp_path / "whole", *more)).returncode == 0
    step = 4 if task == "graph" else 8  # of 6, or of 6 epochs of 2 or 3
    broken = command(task, tmp_path / "broken", *more)
    assert in_processes(broken, STOP=f"9:{rank}:{step}").returncode != 0
    assert not (tmp_path / "broken" / "run" / "metrics.json").exists()
    for _ in range(2):  # the second time nothing is trained
        again = in_processes([*broken, "--resume"])
        assert (again.returncode, again.stderr) == (0, "")
        assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")
        assert history(tmp_path / "broken") == history(tmp_path / "whole")
    first, second = losses(tmp_path / "whole")
    assert (first != second).all()  # of noise of their own


def in_slurm(arguments: list[str], port: int) -> list[subprocess.Popen[str]]:
    """The processes that srun --ntasks-per-node=2 would start."""
    shared = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train"}
    shared |= {"SLURM_NNODES": "1", "SLURM_NODEID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "tests.experiments.harness.in_ranks", *arguments, "--devices", "2"], cwd=ROOT,
            env=os.environ | shared | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]  # fmt: skip


@pytest.mark.slow
@needs_two_cores
def test_torchrun_and_slurm_start_the_same_training(tmp_path):
    more = random_options("translation")
    assert in_processes(command("translation", tmp_path / "own", *more)).returncode == 0
    launcher = ["--standalone", "--nproc-per-node", "2", "-m", "tests.experiments.harness.in_ranks"]
    done = in_processes(
        [*launcher, *command("translation", tmp_path / "torchrun", *more)], module="torch.distributed.run"
    )
    assert done.returncode == 0, done.stderr
    processes = in_slurm(command("translation", tmp_path / "slurm", *more), find_free_network_port())
    assert [process.wait(PATIENCE) for process in processes] == [0, 0]
    for name in ("torchrun", "slurm"):
        assert numbers(tmp_path / name) == numbers(tmp_path / "own")


def test_torchrun_with_another_number_of_processes(capsys, monkeypatch, tmp_path):
    for name, value in {"TORCHELASTIC_RUN_ID": "one", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    arguments = [*options("graph", tmp_path), "--max-epochs", "1", "--out", str(tmp_path / "run")]
    assert run_script(GraphConfig, "experiments.graph.train:train", name="graph", arguments=arguments) == 1
    assert "devices=1" in capsys.readouterr().err
