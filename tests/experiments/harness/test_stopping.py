"""Stopped and resumed, or asked for more epochs: the same numbers as a run from the beginning to the end."""

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from experiments.captioning import train as captioning
from experiments.files import UserError
from experiments.graph import train as graph
from experiments.graph.model import GraphTraining
from experiments.harness.cli import run_script
from experiments.nmt import train as nmt
from experiments.sequence.model import SequenceTraining
from tests.experiments.captioning import tiny_captions
from tests.experiments.graph.tiny_graphs import write_citations
from tests.experiments.nmt import tiny_text

ROOT = Path(__file__).parents[3]
EPOCHS = 3


@dataclass(frozen=True)
class Task:
    """A script, its module for training, and the number of steps of a tiny epoch."""

    script: ModuleType
    training: type
    steps: int
    options: Callable[[Any], dict[str, Any]]

    def config(self, root, out, **changes):
        options = {"guide": "weibull", "max_epochs": EPOCHS, "out": out, "progress": False}
        return self.config_type(**self.options(root) | options | changes)

    @property
    def config_type(self):
        return next(value for name, value in vars(self.script).items() if name in CONFIGS)


CONFIGS = ("GraphConfig", "TranslationConfig", "CaptioningConfig")


def graph_options(root):
    if not (root / "cora.npz").exists():
        write_citations(root)
    return {"dataset": "cora", "data_root": root, "num_samples": 2, "learning_rate": 0.05}


def text_options(root):
    return tiny_text.TINY | {"text": tiny_text.write_text(root / "text")}


TASKS = {
    "graph": Task(graph, GraphTraining, 1, graph_options),
    "nmt": Task(nmt, SequenceTraining, 3, text_options),
    "captioning": Task(captioning, SequenceTraining, 3, lambda _: tiny_captions.TINY),
}


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    tiny_captions.small_scenes(monkeypatch)


@pytest.fixture(params=TASKS)
def task(request):
    return TASKS[request.param]


@dataclass(frozen=True)
class Left:
    """What a finished run leaves, without what depends on the clock."""

    metrics: dict[str, float]
    history: list[dict[str, str]]
    weights: dict[str, torch.Tensor]
    max_epochs: int


def left(folder, metrics):
    with (folder / "history.csv").open() as file:
        history = [{name: value for name, value in row.items() if name != "step_ms"} for row in csv.DictReader(file)]
    weights = load_file(folder / "checkpoints" / "best.safetensors")
    max_epochs = yaml.safe_load((folder / "config.yaml").read_text())["max_epochs"]
    return Left({name: value for name, value in metrics.items() if name != "step_ms"}, history, weights, max_epochs)


_whole: dict[str, Left] = {}


@pytest.fixture
def whole(task, tmp_path, request):
    """What a run of the task leaves that nobody stops."""
    name = request.node.callspec.params["task"]
    if name not in _whole:
        _whole[name] = left(tmp_path / "whole", task.script.run(task.config(tmp_path, tmp_path / "whole")))
    return _whole[name]


def assert_same(found, expected):
    assert found.history == expected.history
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-6, abs=1e-6)
    assert found.max_epochs == expected.max_epochs
    assert found.weights.keys() == expected.weights.keys()
    for name, value in found.weights.items():
        torch.testing.assert_close(value, expected.weights[name], rtol=0, atol=0)


def at_once():
    raise KeyboardInterrupt


STOPS = {
    "ctrl-c": lambda: signal.raise_signal(signal.SIGINT),
    "sigterm": lambda: signal.raise_signal(signal.SIGTERM),
    "at once": at_once,
}


def stop_at(monkeypatch, training, step, stop):
    """Stop the next training at the beginning of a step."""
    original = training.training_step

    def stopped(self, batch, batch_idx):
        if self.global_step == step:
            monkeypatch.setattr(training, "training_step", original)
            stop()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(training, "training_step", stopped)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("stop", STOPS)
def test_a_stopped_run_resumes_to_the_same_numbers(stop, epoch, task, whole, tmp_path, monkeypatch, capsys):
    config = task.config(tmp_path, tmp_path / "run")
    # in the middle of an epoch, where it has a middle
    stop_at(monkeypatch, task.training, epoch * task.steps + task.steps // 2, STOPS[stop])
    assert run_script(Folder, lambda _: task.script.run(config), name="test", arguments=[]) == 130
    message = capsys.readouterr().err
    checkpoint = config.out / "checkpoints" / "last.ckpt"
    finished = epoch if stop == "at once" else epoch + 1
    if finished:
        assert torch.load(checkpoint, weights_only=True)["epoch"] == finished - 1
        assert f"up to the end of epoch {finished - 1}" in message
        assert "--resume continues" in message
    else:
        assert not checkpoint.exists()
        assert "there is no checkpoint; the same command with --resume starts the training again" in message
    assert_same(left(config.out, task.script.run(replace(config, resume=True))), whole)


@dataclass(frozen=True)
class Folder:
    """No options."""


KILLED = """
import os, signal, sys
from pathlib import Path
import pytest
from experiments.harness import checkpoints
from tests.experiments.harness.test_stopping import TASKS, stop_at, tiny_captions

monkeypatch, task, root = pytest.MonkeyPatch(), TASKS[sys.argv[1]], Path(sys.argv[2])
tiny_captions.small_scenes(monkeypatch)
checkpoints.SECONDS = 1e9  # of the first epoch alone, and history.csv knows two
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
stop_at(monkeypatch, task.training, 2 * task.steps + task.steps // 2, kill)
task.script.run(task.config(root, root / "run"))
"""


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_numbers(task, whole, tmp_path, request):
    command = [sys.executable, "-c", KILLED, request.node.callspec.params["task"], str(tmp_path)]
    killed = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    config = task.config(tmp_path, tmp_path / "run", resume=True)
    assert torch.load(config.out / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 0
    assert (config.out / "history.csv").read_text().count("\n") == 1 + 2
    assert_same(left(config.out, task.script.run(config)), whole)


@pytest.mark.parametrize("stopped", [False, True])
def test_more_epochs_end_with_the_same_numbers(stopped, task, whole, tmp_path, monkeypatch):
    first = task.config(tmp_path, tmp_path / "run", max_epochs=2)
    if stopped:
        stop_at(monkeypatch, task.training, 0, STOPS["sigterm"])
        with pytest.raises(KeyboardInterrupt):
            task.script.run(first)
    else:
        assert task.script.run(first)["epochs"] == 2
    more = replace(first, max_epochs=EPOCHS, resume=True)
    # the numbers of the shorter run are gone as soon as the longer one is under way
    stop_at(monkeypatch, task.training, 2 * task.steps, at_once)
    with pytest.raises(KeyboardInterrupt):
        task.script.run(more)
    assert not (first.out / "metrics.json").exists()
    assert_same(left(first.out, task.script.run(more)), whole)
    assert_same(left(first.out, task.script.run(more)), whole)  # read, not trained
    with pytest.raises(UserError, match=f"a run of {EPOCHS} epochs, and max_epochs is 2; pass --max-epochs {EPOCHS}"):
        task.script.run(replace(more, max_epochs=2))


def test_more_epochs_change_nothing_where_training_stopped_early(task, tmp_path, monkeypatch, capsys):
    def worse(self, batch):
        return {"loss": torch.tensor(float(self.current_epoch)), "accuracy": torch.tensor(-float(self.current_epoch))}

    monkeypatch.setattr(task.training, "evaluate", worse)
    config = task.config(tmp_path, tmp_path / "run", patience=1)
    metrics = task.script.run(config)
    assert metrics["epochs"] == 2
    stop_at(monkeypatch, task.training, 0, at_once)
    more = replace(config, max_epochs=10, resume=True, progress=True)
    assert task.script.run(more) == metrics
    assert "stopped early, after 2 epochs; more of them change nothing" in capsys.readouterr().err
    (config.out / "checkpoints" / "last.ckpt").unlink()
    assert task.script.run(more) == metrics  # nothing new is asked for
    with pytest.raises(UserError, match=r"last\.ckpt is missing"):
        task.script.run(replace(more, max_epochs=11))
