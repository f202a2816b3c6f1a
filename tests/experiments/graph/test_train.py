import csv
import functools
import json
import math
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import experiments.graph.data
import experiments.graph.model
from experiments.datasets.graphs.load import load_graph
from experiments.files import UserError
from experiments.graph.attention import relative_entropies
from experiments.graph.config import GraphConfig, ScheduleName
from experiments.graph.evaluation import DEFINITIONS
from experiments.graph.model import build_model, kl_schedule
from experiments.graph.train import GraphTask
from experiments.harness.cli import run_script
from experiments.run import run as run_task
from guides.names import PriorName, WeightsSchemeName
from guides.schemes import build_scheme
from pyro_attention import EdgeList
from tests.experiments.graph.tiny_graphs import write_citations

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def load_once(monkeypatch):
    monkeypatch.setattr(experiments.graph.data, "load_graph", _load)


_load = functools.cache(load_graph)


def run(config):
    return run_task(GraphTask(), config)


def command_line(*arguments):
    return run_script(GraphConfig, run, name="experiments.graph", arguments=[*arguments, "--no-progress"])


def history(folder):
    with (folder / "history.csv").open() as file:
        return [{name: value for name, value in row.items() if name != "step_ms"} for row in csv.DictReader(file)]


# whole runs


@pytest.mark.parametrize("prior", get_args(PriorName))
@pytest.mark.parametrize("guide", get_args(WeightsSchemeName))
def test_every_guide_and_prior_on_digits(guide, prior, tmp_path):
    config = GraphConfig(guide=guide, prior=prior, out=tmp_path, max_epochs=2, num_samples=2, progress=False)
    metrics = run(config)
    expected = {name for name in DEFINITIONS if name != "noise_edge_attention" and "roc_auc" not in name}
    if guide == "soft":  # nothing to sample
        expected = {
            name for name in expected if not re.search("test_attention|test_both|^attention_t|^both|share", name)
        }
    assert metrics.keys() == expected
    assert all(math.isfinite(value) for value in metrics.values())
    assert 0 < metrics["attention_entropy"] <= 1
    assert (metrics["kl"] > 0) == (metrics["kl_gradient_norm"] > 0) == (guide != "soft")
    saved = json.loads((tmp_path / "metrics.json").read_text())
    assert saved.pop("definitions").keys() == expected
    assert saved == metrics
    assert [row["epoch"] for row in history(tmp_path)] == ["0", "1"]
    names = {path.name for path in tmp_path.iterdir() if path.name != ".lock"}
    files = {"config.yaml", "metrics.json", "environment.json", "history.csv", "predictions.npz", "graph.json"}
    assert names == files | {"checkpoints"}


def test_attention_learns_digits(tmp_path):
    fast = {"heads": 2, "dropout": 0.0, "learning_rate": 0.02, "kl_weight": 0.0}
    metrics = run(GraphConfig(**fast, out=tmp_path, max_epochs=15, num_samples=5, progress=False))
    assert metrics["val_accuracy"] > 0.9
    assert metrics["test_attention_accuracy"] > 0.85


@pytest.mark.parametrize(
    "dataset",
    [
        "digits",
        "cora",  # sparse features
    ],
)
def test_half_precision(dataset, tmp_path):
    write_citations(tmp_path)
    options = {"dataset": dataset, "data_root": tmp_path, "max_epochs": 2, "num_samples": 2, "progress": False}
    metrics = run(GraphConfig(precision="bf16-mixed", out=tmp_path / "run", **options))
    assert math.isfinite(metrics["val_loss"])


# resuming


OPTIONS = ["--dataset", "cora", "--guide", "weibull", "--max-epochs", "60"]
OPTIONS += ["--num-samples", "3", "--learning-rate", "0.004"]


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(tmp_path, monkeypatch, capsys):
    write_citations(tmp_path)
    step = experiments.graph.model.GraphTraining.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 5:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch, batch_idx)

    options = [*OPTIONS, "--data-root", str(tmp_path), "--max-epochs", "10", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(experiments.graph.model.GraphTraining, "training_step", interrupted)
    assert command_line(*options) == 130
    assert "--resume" in capsys.readouterr().err
    assert 1 <= len(history(tmp_path / "run")) <= 5
    monkeypatch.setattr(experiments.graph.model.GraphTraining, "training_step", step)
    assert command_line(*options, "--resume") == 0
    assert len(history(tmp_path / "run")) == 10


def test_a_finished_run_is_not_trained_again(tmp_path, monkeypatch):
    write_citations(tmp_path)
    options = {"dataset": "cora", "data_root": tmp_path, "max_epochs": 2, "num_samples": 2, "progress": False}
    config = GraphConfig(out=tmp_path / "run", **options)
    metrics = run(config)
    monkeypatch.setattr(GraphTask, "fit", None)
    assert run(replace(config, resume=True)) == metrics
    with pytest.raises(UserError, match="another configuration"):
        run(replace(config, resume=True, kl_weight=0.5))
    with pytest.raises(UserError, match="holds this run already"):
        run(config)


# parts


@pytest.mark.parametrize("guide", get_args(WeightsSchemeName))
@pytest.mark.parametrize("prior", get_args(PriorName))
def test_the_seed_alone_decides_on_the_shared_weights(guide, prior):
    data = _load("digits")
    reference = build_model(GraphConfig(), data, build_scheme("soft", prior="fixed").prior)
    after = torch.rand(())
    model = build_model(GraphConfig(), data, build_scheme(guide, prior=prior, prior_rate=3.0).prior)
    assert torch.rand(()) == after
    weights = dict(model.named_parameters())
    for name, value in reference.named_parameters():
        assert weights[name].equal(value), name
    if prior == "contextual" and guide in ("weibull", "gamma"):
        assert model.layers[0].attention.prior.log_rate.exp().item() == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("constant", [0.5, 0.5, 0.5]),
        ("linear", [0.0, 0.25, 0.5]),
        ("sigmoid", [0.25, 0.5 / (1 + math.exp(-0.2 * 5)), 0.5 / (1 + math.exp(-0.2 * 10))]),
        ("cyclical", [0.0, 0.5, 0.0]),
    ],
)
def test_kl_schedules(name, weights):
    schedule = kl_schedule(GraphConfig(kl_weight=0.5, kl_schedule=name, kl_steps=10, kl_rate=0.2))
    assert [schedule(step) for step in (0, 5, 10)] == pytest.approx(weights)
    assert name in get_args(ScheduleName)


def test_relative_entropy_is_one_for_uniform_and_zero_for_certain_attention():
    # node 0 attends to itself and both others, node 1 to itself and node 0, node 2 only to itself
    graph = EdgeList.from_edge_index(torch.tensor([[1, 2, 0], [0, 0, 1]]), num_nodes=3, add_self_loops=True)
    uniform = graph.softmax(torch.zeros(1, 6, 2))
    certain = graph.softmax(torch.tensor([0.0, 0, 0, 1, 1, 1]).mul(1000).reshape(1, 6, 1))
    first, second = relative_entropies({"a": uniform, "b": certain}, graph)
    assert first.shape == (1, 2, 2)  # node 2 has nobody to choose from
    torch.testing.assert_close(first, torch.ones(1, 2, 2))
    torch.testing.assert_close(second, torch.zeros(1, 2, 1))


# bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kl-weight", "-1"], "kl-weight"),
        (["--dropout", "2"], "dropout"),
        (["--guide", "hard"], "guide"),
        (["--dataset", "dblp", "--data-root", "/nowhere"], "/nowhere"),
        (["--dataset", "cora", "--split-seed", "1"], "split"),
        (["--learning-rate", "1e30", "--max-epochs", "3"], "learning rate"),
    ],
)
def test_bad_options(arguments, message, tmp_path, capsys):
    assert command_line(*arguments, "--out", str(tmp_path / "run")) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_nan_features(tmp_path, capsys):
    write_citations(tmp_path, x_data=np.full(9 * 42, np.nan, dtype=np.float32))
    assert command_line("--dataset", "cora", "--data-root", str(tmp_path), "--out", str(tmp_path / "run")) == 1
    error = capsys.readouterr().err
    assert "NaN" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
