"""Training a small network: steps, the best weights, and going on after a stop with equal numbers."""

import csv
import gc
import json
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from lightning.pytorch import Trainer
from pyro.distributions import Normal
from pyro.nn import PyroModule
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from experiments import callbacks
from experiments.callbacks import (
    EarlyStopping,
    History,
    RandomState,
    read_run,
    read_weights,
    weights_file,
    write_weights,
)
from experiments.files import UserError
from experiments.folder import open_run, write_metrics
from experiments.options import StudyOptions, TrainingOptions
from experiments.run import Task, load_trained, run_folder
from experiments.training import ELBOTraining, Trained, cpu_computes_bfloat16, fit, load_best
from pyro_attention import AttentionELBO, AttentionGuide, FixedGammaPrior, LatentAttention, Weibull
from pyro_attention.schedules import Linear


class Model(PyroModule):
    """Regression through one attention over three keys, with dropout."""

    def __init__(self):
        super().__init__()
        self.scores, self.values = nn.Linear(2, 3), nn.Linear(2, 3)
        self.dropout = nn.Dropout(0.3)
        self.attention = LatentAttention("attention", FixedGammaPrior())

    def forward(self, x, y=None):
        with pyro.plate("data", len(x), dim=-1):
            values = self.dropout(self.values(x)).unflatten(-1, (1, 3, 1))
            mean = self.attention(self.scores(x).unflatten(-1, (1, 1, 3)), values).context.flatten()
            pyro.sample("y", Normal(mean, 1.0), obs=y)
        return mean


class Training(ELBOTraining):
    stop = None  # a signal, or None for a crash
    interrupt_at: tuple[int, ...] = ()

    def observations(self, batch):
        return len(batch[0])

    def evaluate(self, batch):
        return {"loss": (self.objective.model(*batch) - batch[1]).square().mean()}

    def training_step(self, batch, batch_idx):
        if self.global_step in self.interrupt_at:
            if self.stop is None:
                raise RuntimeError("crash")
            signal.raise_signal(self.stop)
        return super().training_step(batch, batch_idx)


class Interrupted(Training):
    stop = signal.SIGINT


DATA = torch.linspace(-1, 1, 16).reshape(8, 2)
DATA = TensorDataset(DATA, DATA.sum(-1))


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(callbacks, "SECONDS", 0.0)


def train(folder, kind=Training, at=(), epochs=6, resume=False, patience=100, kl_weight=1.0, **options):
    others = {name: options.pop(name) for name in ("callbacks", "gradient_clip") if name in options}
    pyro.set_rng_seed(0)
    model = Model()
    module = kind(model, AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=kl_weight), learning_rate=0.05)
    module.interrupt_at = at
    loaders = DataLoader(DATA, batch_size=4, shuffle=True), DataLoader(DATA, batch_size=8)
    config = TrainingOptions(**{"progress": False, "max_epochs": epochs, "resume": resume} | options)
    fitted = fit(config, module, *loaders, folder=folder, monitor={"val_loss": "min"}, patience=patience, **others)
    return module, fitted


def test_a_gpu_is_waited_for_once_an_epoch(monkeypatch):
    """Not in every step, as it works ahead; the times of the steps are its own."""
    waits, clock = [], iter([0.0, 2.0, 10.0, 14.0, 20.0, 21.0])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            assert stream == "the present one"
            self.time = next(clock)

        def elapsed_time(self, end):
            assert waits
            return end.time - self.time

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "the present one")
    device, history = torch.device("cuda"), History()
    trainer = SimpleNamespace(
        strategy=SimpleNamespace(root_device=device), current_epoch=0, callback_metrics={"loss": torch.tensor(0.5)}
    )
    for steps in (2, 1):
        for _ in range(steps):
            history.on_train_batch_start(trainer)
            history.on_train_batch_end(trainer)
        history.on_train_epoch_end(trainer)
    assert [row["step_ms"] for row in history.rows] == [3.0, 1.0]
    assert waits == [device, device]


def numbers(fitted):
    """The history without what time it took."""
    return [{name: value for name, value in row.items() if name != "step_ms"} for row in fitted.history]


def rows(folder):
    with (folder / "history.csv").open() as file:
        return list(csv.DictReader(file))


def epochs_of(folder):
    return [int(row["epoch"]) for row in rows(folder)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("uninterrupted")


@pytest.fixture(scope="module")
def uninterrupted(folder):
    return train(folder)


def assert_same(run, expected):
    (module, fitted), (expected_module, expected_fitted) = run, expected
    assert numbers(fitted) == numbers(expected_fitted)
    assert fitted.best_epoch == expected_fitted.best_epoch
    torch.testing.assert_close(module.state_dict(), expected_module.state_dict(), rtol=0, atol=0)


# steps


def test_the_loss_is_the_negative_elbo_per_observation(monkeypatch):
    model = Model()
    guide, elbo = AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=0.5)
    module = Training(model, guide, elbo, learning_rate=0.1)
    logged = {}
    monkeypatch.setattr(module, "log_dict", lambda record, **_: logged.update(record))
    batch = torch.ones(4, 2), torch.zeros(4)
    pyro.set_rng_seed(0)
    loss = module.training_step(batch, 0)
    pyro.set_rng_seed(0)
    assert loss.item() == pytest.approx(elbo.loss(model, guide, *batch) / 4)
    assert logged["loss"].item() == loss.item()
    assert logged["kl_weight"] == 0.5
    assert logged["kl_attention"].item() == elbo.kl_record["attention"].item()


def test_the_kl_weight_follows_the_optimiser_steps(tmp_path):
    _, fitted = train(tmp_path, epochs=3, kl_weight=Linear(4))
    # means over the two steps of an epoch; step 0 has no KL, since its weight is zero
    assert [row["kl_weight"] for row in fitted.history] == [0.125, 0.625, 1.0]


# going on


@pytest.mark.parametrize(
    ("kind", "error", "seconds"),
    [(Training, RuntimeError, 0.0), (Interrupted, KeyboardInterrupt, 1e9)],
)
def test_a_resumed_run_equals_an_uninterrupted_one(kind, error, seconds, tmp_path, uninterrupted, monkeypatch):
    """Two steps an epoch: it ends in the middle of epoch 3, behind the checkpoint of epoch 2 or of the first one."""
    monkeypatch.setattr(callbacks, "SECONDS", seconds)
    with pytest.raises(error):
        train(tmp_path, kind, at=(6,))
    last = 2 if seconds == 0 else 0
    assert read_run(tmp_path / "checkpoints" / "last.ckpt")["epoch"] == last
    assert epochs_of(tmp_path) == list(range(last + 1))
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))


def test_more_epochs_than_at_first(tmp_path, uninterrupted, monkeypatch):
    monkeypatch.setattr(callbacks, "SECONDS", 1e9)  # the last epoch has a checkpoint all the same
    train(tmp_path, epochs=3)
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))
    with pytest.raises(UserError, match="max_epochs=4"):
        train(tmp_path, epochs=4, resume=True)


class Worse(Training):
    def evaluate(self, batch):
        return {"loss": torch.tensor(float(self.current_epoch))}


@pytest.mark.parametrize(("kind", "patience", "epochs"), [(Training, 100, 6), (Worse, 2, 3)], ids=["end", "stopped"])
def test_resuming_a_finished_run_trains_no_more(kind, patience, epochs, tmp_path, capsys):
    expected = train(tmp_path, kind, patience=patience, progress=True)
    assert len(expected[1].history) == epochs
    stopped = "stopped early after 3 epochs: none of the last 2 had as good a val_loss"
    assert (stopped in capsys.readouterr().out) == (epochs < 6)
    assert_same(train(tmp_path, kind, at=range(100), resume=True, patience=patience), expected)
    assert "stopped early" not in capsys.readouterr().out  # without a progress bar


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_states_come_back_from_a_file_without_pickled_objects(tmp_path):
    torch.save(RandomState(0).state_dict(), tmp_path / "state")
    expected = draw()
    pyro.set_rng_seed(7)
    assert draw() != expected
    RandomState(0).load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == expected


# the best weights


@pytest.mark.parametrize(
    ("epochs", "kept", "waited"),
    [
        ([(0.6, 0.9)], [True], [0]),  # both better
        ([(0.5, 1.0)], [True], [0]),  # ties count
        ([(0.6, 1.1)], [False], [0]),  # one of them
        ([(float("nan"), float("nan"))], [False], [1]),
        # the third epoch beats the first one on both, but not the best of each
        ([(0.7, 2.0), (0.6, 0.9), (0.7, 0.9)], [False, False, True], [0, 0, 0]),
        # the end comes after two epochs in a row that are good for nothing
        ([(0.4, 1.1), (0.5, 1.2), (0.4, 1.1), (0.4, 1.1)], [False] * 4, [1, 0, 1, 2]),
    ],
)
def test_any_metric_resets_the_counter_and_all_keep_the_weights(epochs, kept, waited):
    rule, found = EarlyStopping({"accuracy": "max", "loss": "min"}, patience=2), []
    for accuracy, loss in [(0.5, 1.0), *epochs]:
        found.append((rule.update({"accuracy": accuracy, "loss": loss}), rule.waited))
    assert found == [(True, 0), *zip(kept, waited, strict=True)]


def test_the_last_epoch_is_kept_when_asked_for_unless_its_metrics_are_not_finite():
    rule = EarlyStopping({"accuracy": "max"}, patience=3, keep="last")
    assert [rule.update({"accuracy": value}) for value in (0.8, 0.5, float("nan"))] == [True, True, False]
    assert (rule.best, rule.waited) == ({"accuracy": 0.8}, 2)


def test_the_best_weights_are_restored_and_read_without_this_harness(tmp_path):
    module, fitted = train(tmp_path, Worse, epochs=2)
    assert fitted.best_epoch == 0
    with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as best:
        assert int(best.metadata()["epoch"]) == 0
    weights, prefix = load_file(tmp_path / "checkpoints" / "best.safetensors"), "objective.model."
    torch.testing.assert_close(weights, dict(module.state_dict()), rtol=0, atol=0)
    last = read_run(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]
    assert not weights[f"{prefix}scores.weight"].equal(last[f"{prefix}scores.weight"])
    of_model = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    Model().load_state_dict(of_model)


def test_weights_of_another_network_and_tied_ones(uninterrupted, tmp_path):
    module, _ = uninterrupted
    one = torch.arange(6.0).reshape(2, 3)
    weights = {"a": one, "tied": one, "turned": one.mT, "part": one[0], "repeated": torch.ones(1).expand(3, 4)}
    write_weights(tmp_path, weights, epoch=0)
    torch.testing.assert_close(read_weights(weights_file(tmp_path)), weights, rtol=0, atol=0)
    with pytest.raises(UserError, match=r"(?s)best\.safetensors cannot be read .*pass --overwrite"):
        load_best(module, tmp_path)


class Diverged(Training):
    def evaluate(self, batch):
        return {"loss": torch.tensor(float("nan"))}


def test_a_training_that_cannot_be_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="no epoch has a finite val_loss; try a smaller learning rate"):
        train(tmp_path, Diverged, epochs=2)


# what is left and shown


def test_nothing_is_left_of_a_finished_training(tmp_path, monkeypatch):
    """A sweep trains many networks in one process; a signal handler of Lightning's would hold each of them."""

    def trainers():
        gc.collect()
        return sum(type(one) is Trainer for one in gc.get_objects())

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = trainers()
    train(tmp_path / "out", epochs=1)
    assert trainers() == before
    assert list((tmp_path / "here").iterdir()) == []
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"environment.json", "history.csv", "checkpoints/last.ckpt", "checkpoints/best.safetensors"}


def test_a_bar_shows_loss_and_validation(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(callbacks, "tqdm", partial(callbacks.tqdm, mininterval=0.0))
    train(tmp_path, epochs=3, progress=True)
    printed, shown = capfd.readouterr()
    assert "\r" not in printed
    assert re.search(r"6/6.*epoch=3, loss=-?\d+\.\d+, val_loss=\d", shown)
    assert [line for line in re.split("[\r\n]", shown) if len(line) > 80] == []
    bars = set(re.findall(r"\d+%\|([^|]*)\|", shown))
    assert {len(bar) for bar in bars} == {10}


# run()


class Regression(Task):
    """A task of nothing."""

    script, kind, patience = "script", Training, 100

    def folder(self, config):
        return "regression"

    def run(self, config):
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            data = DataLoader(DATA, batch_size=4, shuffle=True), DataLoader(DATA, batch_size=8)
            folder = run.begin()
            trained = self.restore(config, folder)
            fitted = self.fit(trained, data, folder)
            assert not trained.module.training
            loss = trained.module.evaluate(next(iter(data[1])))["loss"].item()
            return run.finish({"loss": loss} | fitted.metrics)

    def restore(self, config, folder):
        pyro.set_rng_seed(config.seed)
        model = Model()
        module = self.kind(model, AttentionGuide(model, Weibull()), AttentionELBO(), learning_rate=0.05)
        return Trained(config, module)

    def fit(self, trained, data, folder):
        monitor = {"val_loss": "min"}
        return fit(trained.config, trained.module, *data, folder=folder, patience=self.patience, monitor=monitor)


def test_a_run_is_trained_once_and_goes_on_with_more_epochs(tmp_path, monkeypatch):
    def trained(name, epochs, **options):
        config = TrainingOptions(out=tmp_path / name, max_epochs=epochs, progress=False, **options)
        metrics = Regression().run(config)
        return {name: value for name, value in metrics.items() if name != "step_ms"}, load_trained(Regression(), config)

    whole, network = trained("whole", 4)
    assert whole.keys() == {"loss", "best_epoch", "epochs", "updates", "parameters"}
    assert (whole["epochs"], whole["updates"], whole["parameters"]) == (4, 8, 18)
    trained("more", 2)
    more, again = trained("more", 4, resume=True)
    assert more == whole
    torch.testing.assert_close(again.module.state_dict(), network.module.state_dict(), rtol=0, atol=0)
    with pytest.raises(UserError, match="holds a run of 4 epochs, and max_epochs is 3"):
        trained("more", 3, resume=True)
    monkeypatch.setattr(Regression, "fit", None)
    assert trained("more", 4, resume=True)[0] == whole


@pytest.mark.filterwarnings("ignore:.* was not registered in the param store")
def test_parameters_that_are_frozen_are_not_trained(tmp_path):
    """As those of a network below its adapters."""

    class Frozen(Regression):
        def restore(self, config, folder):
            trained = super().restore(config, folder)
            self.frozen = next(trained.module.parameters()).requires_grad_(False)
            return trained

    task = Frozen()
    metrics = task.run(TrainingOptions(out=tmp_path / "run", max_epochs=1, progress=False))
    assert metrics["parameters"] == 18 - task.frozen.numel()


def test_a_run_that_is_overwritten_stays_until_the_data_are_there(tmp_path):
    task, config = Regression(), TrainingOptions(out=tmp_path / "run", max_epochs=1, progress=False)
    metrics = task.run(config)
    again = replace(config, learning_rate=0.1, overwrite=True)

    def without_data():
        with run_folder(task, again):
            with pytest.raises(UserError, match="is in use by another process"):
                task.run(again)
            raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        without_data()
    assert task.run(replace(config, resume=True)) == metrics
    with run_folder(task, again) as run:
        assert run.metrics is None
        assert {path.name for path in run.begin().iterdir()} == {"config.yaml", ".lock"}
    with pytest.raises(UserError, match=r"another configuration \(learning_rate 0\.1 instead of 0\.001\)"):
        task.run(replace(config, resume=True))


class Planned(TrainingOptions):
    """Options of a training whose learning rate is planned."""

    planned = True


@pytest.mark.parametrize("config_type", [TrainingOptions, Planned])
def test_the_folder_of_another_command_is_refused(config_type, tmp_path):
    """All options of the training have their defaults, so that none differs from a saved one."""
    with open_run(tmp_path, StudyOptions(name="made")) as folder:
        write_metrics(folder, {"soft/loss": 1.0})
    said = r"holds a run of another command or version, with options that there are not here \(changes, cluster, .*name"
    with pytest.raises(UserError, match=said):
        Regression().run(config_type(out=tmp_path, resume=True, progress=False))
    assert (tmp_path / "metrics.json").is_file()


def test_of_two_runs_that_begin_in_a_new_folder_the_second_is_refused(tmp_path):
    """Both find no folder; while the second loads its data, the first trains, or has trained."""
    task, config = Regression(), TrainingOptions(out=tmp_path / "run", max_epochs=1, progress=False)
    with run_folder(task, config) as second:
        with run_folder(task, config) as first:
            first.begin()
            with pytest.raises(UserError, match="is in use by another process"):
                second.begin()
        with pytest.raises(UserError, match="holds this run already; pass --resume"):
            second.begin()


def test_a_run_that_stopped_early_has_all_epochs_that_it_takes(tmp_path, monkeypatch):
    task = Regression()
    task.kind, task.patience = Worse, 2
    config = TrainingOptions(out=tmp_path / "run", max_epochs=6, progress=False)
    assert task.run(config)["epochs"] == 3
    monkeypatch.setattr(task, "fit", None)
    assert task.run(replace(config, max_epochs=9, resume=True))["epochs"] == 3


@pytest.mark.slow
def test_two_processes_train_one_network(tmp_path):
    sizes = "--train-pairs 40 --test-pairs 8 --layers 1 --beam 1 --hidden 8 --embedding 8 --max-epochs 1"
    where = f"--devices 2 --device cpu --no-progress --out {tmp_path}"
    command = f"-m experiments.nmt train --dataset toy --guide marginal {sizes} {where}"
    subprocess.run([sys.executable, *command.split()], check=True, capture_output=True)
    (row,) = csv.DictReader((tmp_path / "history.csv").read_text().splitlines())
    assert 0 < float(row["loss"]) < 10
    assert json.loads((tmp_path / "metrics.json").read_text())["updates"] == 1  # 40 pairs are one batch of two devices


@pytest.mark.parametrize(("avx512", "bf16", "amx", "expected"), [
    (False, False, False, True),
    (True, False, False, False),
    (True, True, False, True),
    (True, False, True, True),
])  # fmt: skip
def test_which_cpus_compute_bfloat16(
    avx512: bool, bf16: bool, amx: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only those of AVX-512 alone do so too slowly; oneDNN knows of the others."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for name, value in (("avx512", avx512), ("avx512_bf16", bf16), ("amx_tile", amx)):
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda value=value: value)
    assert cpu_computes_bfloat16() == expected
