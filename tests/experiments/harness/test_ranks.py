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

from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from experiments.harness.training import fit
from experiments.nmt.config import TranslationConfig
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


@pytest.mark.slow
@needs_two_cores
@pytest.mark.parametrize(
    ("task", "more"),
    [
        # 23 images: batches of 10, 10 and 3, of which the processes have 2 and 1
        ("captioning", ["--guide", "categorical_enum", "--max-epochs", "7"]),
        ("captioning", ["--guide", "soft", "--max-epochs", "7"]),
        # one batch, the whole graph, in every process
        ("graph", ["--guide", "soft", "--max-epochs", "20"]),
    ],
)
def test_two_processes_train_as_one(task, more, tmp_path):
    assert_same_curve(task, tmp_path, *more, batch_size=5)


@pytest.mark.slow
@needs_two_cores
def test_gradients_of_random_attention_agree_in_mean(tmp_path):
    """400 steps of no length in either way, with noise and dropout: the means agree within 3 standard errors."""
    still = ["--guide", "weibull", "--learning-rate", "1e-30", "--patience", "100", "--checkpoint-every", "100"]
    for name, devices, size in (("two", 2, "3"), ("one", 1, "6")):  # four batches an epoch
        arguments = command("translation", tmp_path / name, *still, "--max-epochs", "100", "--batch-size", size)
        done = in_processes(arguments, devices=devices, GRADIENTS="1")
        assert done.returncode == 0, done.stderr
    two, one = (record(tmp_path / name, "gradients") for name in ("two", "one"))
    assert two.shape == one.shape
    assert len(one) == 400
    directions = torch.randn(one.size(1), 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    directions /= one.std(0).clamp_min(1e-12).unsqueeze(1)
    difference = (two - one) @ directions  # step by step, of the same batch
    assert (difference.mean(0).abs() <= 3 * difference.std(0) / 400**0.5).all()
    means = [torch.tensor([row["kl_alignment"] for row in history(tmp_path / name)]).mean() for name in ("two", "one")]
    torch.testing.assert_close(*means, rtol=0.02, atol=0)


RANDOM = ["--guide", "weibull", "--max-epochs", "6", "--checkpoint-every", "1"]


def random_options(task: str) -> list[str]:
    return RANDOM if task == "graph" else [*RANDOM, "--batch-size", "5", "--patience", "9"]


@pytest.mark.slow
@needs_two_cores
@pytest.mark.parametrize("task", ["translation", "captioning", "graph"])
@pytest.mark.parametrize(
    ("stop", "codes"),
    # whether the first process sees first that it is alone, or is killed by Lightning, which sees it too
    [("9:1:{}", {1, -9}), ("9:0:{}", {-9}), ("2:1:{}", {130})],
    ids=["kill", "kill first", "ctrl-c"],
)
def test_a_resumed_training_of_two_processes_ends_with_the_same_numbers(task, stop, codes, tmp_path):
    more = random_options(task)
    assert in_processes(command(task, tmp_path / "whole", *more)).returncode == 0
    step = 4 if task == "graph" else 8  # of 6, or of 6 epochs of 2 or 3
    done = in_processes(command(task, tmp_path / "broken", *more), STOP=stop.format(step))
    assert done.returncode in codes, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "broken" / "run" / "metrics.json").exists()
    if codes == {130}:
        assert done.stderr.count("interrupted; ") == 1
    again = in_processes(command(task, tmp_path / "broken", *more, "--resume"))
    assert (again.returncode, again.stderr) == (0, "")
    assert numbers(tmp_path / "broken") == numbers(tmp_path / "whole")
    assert history(tmp_path / "broken") == history(tmp_path / "whole")
    losses = [json.loads(path.read_text())["losses"] for path in (tmp_path / "whole" / "record").iterdir()]
    assert all(first != second for first, second in zip(*losses, strict=True))  # of noise of their own
    whole, rest = (record(tmp_path / name) for name in ("whole", "broken"))
    assert 0 < len(rest) < len(whole)
    assert rest.tolist() == whole[-len(rest) :].tolist()


@pytest.mark.slow
@needs_two_cores
def test_another_number_of_processes_and_what_ends_before_the_training(tmp_path):
    more = random_options("translation")
    for devices, others in ((2, 1), (1, 2)):
        folder = tmp_path / str(devices)
        arguments = command("translation", folder, *more)
        assert in_processes(arguments, devices=devices, STOP="9:0:8").returncode == -9
        again = in_processes([*arguments, "--resume"], devices=others)
        assert again.returncode == 0
        assert f"checkpoint is of a training in {devices} processes, and this one has {others}" in again.stderr
        assert again.stderr.count("\n") == 1
        assert [row["epoch"] for row in history(folder)] == list(range(6))
    before = numbers(folder)
    finished = in_processes([*arguments, "--resume"])  # the second process is told that there is nothing to do
    assert (finished.returncode, finished.stderr) == (0, "")
    assert numbers(folder) == before
    refused = in_processes(arguments)
    assert refused.returncode == 1
    assert "holds this run already; pass --resume" in refused.stderr
    assert refused.stderr.count("\n") == 1


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


# Bad input


def said(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    code = run_script(TranslationConfig, "experiments.nmt.train:run", name="translation", arguments=options)
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert captured.out == ""
    return captured.err


def test_more_devices_than_there_are(capsys, tmp_path):
    text = said(capsys, "--devices", "1000", "--device", "cpu", "--out", str(tmp_path))
    cores = os.cpu_count()
    assert f"devices is 1000, but this machine has {cores} CPU core" in text
    assert f"pass --devices {cores}" in text
    assert not list(tmp_path.iterdir())


def test_strategies_that_there_are_not(capsys):
    assert "--strategy dp: expected one of ddp, fsdp; did you mean 'ddp'?" in said(capsys, "--strategy", "dp")
    assert "strategy is fsdp, but" in said(capsys, "--strategy", "fsdp", "--devices", "2", "--device", "cpu")
    assert "--devices: Not of type PositiveInt: 0" in said(capsys, "--devices", "0")


def test_torchrun_with_another_number_of_processes(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("WORLD_SIZE", "2")
    text = said(capsys, "--device", "cpu", "--out", str(tmp_path))
    assert "torchrun has started 2 processes, but devices times num_nodes is 1; pass" in text
    assert "as --devices" in text


def test_only_commands_start_processes(tmp_path):
    config = TranslationConfig(devices=2, device="cpu", out=tmp_path, progress=False)
    module = torch.nn.Module()
    with pytest.raises(UserError, match=r"num_nodes is 2, but there are 1 processes.*on_every_rank"):
        fit(config, module, [], [], folder=tmp_path, patience=1, monitor={"val_loss": "min"})
