"""Trainings in two processes, as the commands start them: the same numbers as one process with batches twice as large."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from experiments.harness.results import read_metrics
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
        return [*SMALL, "--heads", "2"]
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


def record(folder: Path, name: str = "losses") -> torch.Tensor:
    """What was recorded of every step, the mean over ranks."""
    found = [json.loads(path.read_text())[name] for path in sorted((folder / "record").glob("*.json"))]
    return torch.tensor(found, dtype=torch.float64).mean(0)


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
    two, one = (record(tmp_path / name) for name in ("two", "one"))
    assert len(list((tmp_path / "two" / "record").iterdir())) == 2
    assert len(one) >= 20
    torch.testing.assert_close(two, one, rtol=0, atol=1e-6)
    for rows in zip(history(tmp_path / "two"), history(tmp_path / "one"), strict=True):
        assert rows[0] == pytest.approx(rows[1], abs=1e-6)
    assert numbers(tmp_path / "two") == pytest.approx(numbers(tmp_path / "one"), abs=1e-6)


@needs_two_cores
def test_two_processes_translate_as_one_with_batches_twice_as_large(tmp_path):
    # 24 pairs: batches of 10, 10 and 4
    assert_same_curve("translation", tmp_path, "--max-epochs", "7", batch_size=5)
