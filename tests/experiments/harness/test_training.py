import csv
import random
import re
import signal
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from lightning.pytorch import Callback
from pyro.distributions import Normal
from pyro.nn import PyroModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import experiments.harness.checkpoints
from experiments.files import UserError
from experiments.harness.callbacks import EarlyStopping, History, RandomState
from experiments.harness.checkpoints import read_run
from experiments.harness.options import TrainingOptions
from experiments.harness.training import ELBOTraining, fit
from pyro_attention import AttentionELBO, AttentionGuide, FixedGammaPrior, LatentAttention, Weibull
from pyro_attention.schedules import Linear

# the generators


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_random_states_come_back_from_a_file_without_pickled_objects(tmp_path):
    torch.save(RandomState().state_dict(), tmp_path / "state")
    expected = draw()
    pyro.set_rng_seed(7)
    assert draw() != expected
    RandomState().load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert draw() == expected


@pytest.mark.cuda
def test_random_states_of_cuda_devices_come_back():
    state = RandomState().state_dict()
    expected = torch.rand(3, device="cuda")
    RandomState().load_state_dict(state)
    assert torch.rand(3, device="cuda").equal(expected)


# early stopping


def stopping(patience=2):
    return EarlyStopping({"accuracy": "max", "loss": "min"}, patience=patience)


def follow(rule, *epochs):
    """Which epochs are kept, and how long the rule has waited after each of them."""
    kept, waited = [], []
    for accuracy, loss in epochs:
        kept.append(rule.update({"accuracy": accuracy, "loss": loss}))
        waited.append(rule.waited)
    return kept, waited


@pytest.mark.parametrize(
    ("second", "kept", "waited"),
    [
        ((0.6, 0.9), True, 0),  # both better
        ((0.5, 1.0), True, 0),  # ties count
        ((0.6, 1.1), False, 0),  # one of them
        ((0.4, 0.9), False, 0),
        ((0.4, 1.1), False, 1),  # none
        ((float("nan"), float("nan")), False, 1),
    ],
)
def test_any_metric_resets_the_counter_and_all_keep_the_weights(second, kept, waited):
    assert follow(stopping(), (0.5, 1.0), second) == ([True, kept], [0, waited])


def test_the_bests_are_of_different_epochs():
    # the third epoch beats the first one on both, but not the best of each
    kept, waited = follow(stopping(), (0.5, 1.0), (0.7, 2.0), (0.6, 0.9), (0.7, 0.9))
    assert kept == [True, False, False, True]
    assert waited == [0, 0, 0, 0]


def test_training_stops_after_so_many_epochs_without_a_reset():
    rule = stopping(patience=2)
    follow(rule, (0.5, 1.0), (0.4, 1.1), (0.5, 1.2), (0.4, 1.1))
    assert not rule.exhausted
    follow(rule, (0.4, 1.1))
    assert rule.exhausted


@pytest.mark.parametrize(("monitor", "patience"), [({}, 1), ({"loss": "min"}, 0)])
def test_impossible_rules_are_refused(monitor, patience):
    with pytest.raises(ValueError, match="patience"):
        EarlyStopping(monitor, patience=patience)


# training


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
    interrupt_at: tuple[int, ...] = ()

    def observations(self, batch):
        return len(batch[0])

    def evaluate(self, batch):
        return {"loss": (self.objective.model(*batch) - batch[1]).square().mean()}

    def training_step(self, batch, batch_idx):
        if self.global_step in self.interrupt_at and self.trainer.is_global_zero:
            self.interrupt()
        return super().training_step(batch, batch_idx)

    def interrupt(self):
        signal.raise_signal(signal.SIGINT)


class Terminated(Training):
    def interrupt(self):
        signal.raise_signal(signal.SIGTERM)


class Crash(Training):
    def interrupt(self):
        raise RuntimeError("crash")


def train(folder, kind=Training, at=(), epochs=6, resume=False, patience=100, kl_weight=1.0, batch_size=4, **options):
    others = {name: options.pop(name) for name in ("callbacks", "gradient_clip") if name in options}
    pyro.set_rng_seed(0)
    model = Model()
    module = kind(model, AttentionGuide(model, Weibull()), AttentionELBO(kl_weight=kl_weight), learning_rate=0.05)
    module.interrupt_at = at
    x = torch.linspace(-1, 1, 16).reshape(8, 2)
    data = TensorDataset(x, x.sum(-1))
    loaders = DataLoader(data, batch_size=batch_size, shuffle=True), DataLoader(data, batch_size=8)
    config = TrainingOptions(
        **{"checkpoint_every": 2, "progress": False, "max_epochs": epochs, "resume": resume} | options
    )
    fitted = fit(config, module, *loaders, folder=folder, monitor={"val_loss": "min"}, patience=patience, **others)
    return module, fitted


def numbers(fitted):
    """The history without what time it took."""
    return [{name: value for name, value in row.items() if name != "step_ms"} for row in fitted.history]


def epochs_of(folder):
    with (folder / "history.csv").open() as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(tmp_path_factory.mktemp("uninterrupted"))


def assert_same(run, expected):
    (module, fitted), (expected_module, expected_fitted) = run, expected
    assert numbers(fitted) == numbers(expected_fitted)
    assert fitted.best_epoch == expected_fitted.best_epoch
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, expected_module.state_dict()[name], rtol=0, atol=0)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, uninterrupted):
    # two steps an epoch: it dies in the middle of epoch 3, behind the checkpoint after epoch 1
    with pytest.raises(RuntimeError, match="crash"):
        train(tmp_path, Crash, at=(7,))
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))


@pytest.mark.parametrize("kind", [Training, Terminated])
def test_a_signal_finishes_the_epoch_and_leaves_a_checkpoint(kind, tmp_path, uninterrupted, capfd):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match=r"last\.ckpt holds the training up to the end of epoch 2.*--resume"):
        train(tmp_path, kind, at=(4,))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert "stopping after this epoch" in capfd.readouterr().err
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert_same(train(tmp_path, resume=True), uninterrupted)


@pytest.mark.parametrize("kind", [Training, Terminated])
def test_a_second_signal_stops_at_once(kind, tmp_path, uninterrupted):
    with pytest.raises(KeyboardInterrupt, match=r"epoch 1\b"):
        train(tmp_path, kind, at=(6, 7))
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert_same(train(tmp_path, resume=True), uninterrupted)


def test_a_stop_in_the_first_epoch_says_that_there_is_no_checkpoint(tmp_path, uninterrupted):
    with pytest.raises(KeyboardInterrupt, match=r"no checkpoint.*--resume starts the training again"):
        train(tmp_path, at=(0, 1))
    assert not list(tmp_path.rglob("*.ckpt"))
    assert_same(train(tmp_path, resume=True), uninterrupted)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, uninterrupted):
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert_same(train(tmp_path, at=(3,)), uninterrupted)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(("seconds", "epoch"), [(0.0, 2), (1e9, 0)])
def test_checkpoints_come_every_epoch_unless_epochs_are_short(seconds, epoch, tmp_path, uninterrupted, monkeypatch):
    monkeypatch.setattr(experiments.harness.checkpoints, "SECONDS", seconds)
    with pytest.raises(RuntimeError, match="crash"):
        train(tmp_path, Crash, at=(6,), checkpoint_every=None)
    assert read_run(tmp_path / "checkpoints" / "last.ckpt")["epoch"] == epoch
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))


@pytest.mark.parametrize("first", [2, 3])  # one behind a checkpoint of its own, one of the last epoch alone
def test_more_epochs_than_at_first(first, tmp_path, uninterrupted):
    train(tmp_path, epochs=first)
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))
    with pytest.raises(UserError, match=r"last\.ckpt holds 6 epochs, and max_epochs is 4; pass --max-epochs 6"):
        train(tmp_path, epochs=4, resume=True)


def test_resuming_a_finished_run_trains_no_more(tmp_path):
    expected = train(tmp_path)
    assert_same(train(tmp_path, Crash, at=range(100), resume=True), expected)


def test_resuming_a_stopped_run_trains_no_more(tmp_path):
    class Worse(Training):
        def evaluate(self, batch):
            return {"loss": torch.tensor(float(self.current_epoch))}

    class Never(Worse):
        training_step = Crash.training_step
        interrupt = Crash.interrupt

    expected = train(tmp_path, Worse, patience=2)
    assert len(expected[1].history) == 3
    assert_same(train(tmp_path, Never, at=range(100), resume=True, patience=2), expected)


def test_the_best_weights_are_restored(tmp_path):
    module, fitted = train(tmp_path)
    losses = [row["val_loss"] for row in fitted.history]
    assert fitted.best_epoch == min(range(6), key=losses.__getitem__)
    best = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["epoch"] == fitted.best_epoch
    torch.testing.assert_close(dict(best["state_dict"]), dict(module.state_dict()))


def test_the_checkpoint_is_read_without_pickle(tmp_path):
    train(tmp_path)
    checkpoint = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert checkpoint["epoch"] == 5


def test_a_run_without_finite_metrics_is_an_error(tmp_path):
    class Diverged(Training):
        def evaluate(self, batch):
            return {"loss": torch.tensor(float("nan"))}

    with pytest.raises(UserError, match="no epoch has a finite val_loss"):
        train(tmp_path, Diverged, epochs=2)


def test_the_kl_weight_follows_the_optimiser_steps(tmp_path):
    _, fitted = train(tmp_path, epochs=3, kl_weight=Linear(4))
    # means over the two steps of an epoch; step 0 has no KL, since its weight is zero
    assert [row["kl_weight"] for row in fitted.history] == [0.125, 0.625, 1.0]


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


def test_nothing_is_written_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(tmp_path / "out", epochs=1)
    assert list((tmp_path / "here").iterdir()) == []
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"history.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"}


def test_half_precision(tmp_path):
    _, fitted = train(tmp_path, epochs=1, precision="bf16-mixed")
    assert np.isfinite(fitted.history[0]["loss"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_missing_gpu_is_named(tmp_path):
    with pytest.raises(UserError, match="--device cpu"):
        train(tmp_path, device="cuda")


class Late(Training):
    """Logs one metric more from its second epoch on."""

    def training_step(self, batch, batch_idx):
        if self.current_epoch:
            self.log("late", 1.0, on_step=False, on_epoch=True, batch_size=4)
        return super().training_step(batch, batch_idx)


def test_history_gets_its_row_at_the_end_of_every_epoch(tmp_path):
    seen = []

    class Look(Callback):
        def on_train_epoch_start(self, *_):
            seen.append(epochs_of(tmp_path) if (tmp_path / "history.csv").exists() else None)

    train(tmp_path, Late, epochs=3, callbacks=[Look()], checkpoint_every=100)
    assert seen == [None, [0], [0, 1]]
    with (tmp_path / "history.csv").open() as file:
        assert [row["late"] for row in csv.DictReader(file)] == ["", "1.0", "1.0"]


def test_history_leaves_metrics_empty_that_an_epoch_does_not_have(tmp_path):
    history = History(tmp_path / "history.csv")
    history.rows = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": 0.5, "kl": 2.0}]
    history.write()
    assert history.path.read_text() == "epoch,loss,kl\n0,1.0,\n1,0.5,2.0\n"


# what the user sees


@pytest.mark.parametrize("batch_size", [4, 8])  # a bar over batches, and one over epochs of a single batch
def test_bars_show_the_loss_and_the_validation_metric(batch_size, tmp_path, capsys):
    _, fitted = train(tmp_path, epochs=2, batch_size=batch_size, progress=True)
    shown = "".join(capsys.readouterr())
    assert re.search(r"loss=-?\d+\.\d", shown)
    assert f"val_loss={fitted.history[-1]['val_loss']:.3f}" in shown


def test_early_stopping_is_said(tmp_path, capsys):
    class Worse(Training):
        def evaluate(self, batch):
            return {"loss": torch.tensor(float(self.current_epoch))}

    train(tmp_path, Worse, patience=2, progress=True)
    assert "stopped early after 3 epochs: none of the last 2 had as good a val_loss" in capsys.readouterr().out


# ranks


def test_every_rank_draws_noise_of_its_own():
    drawn = []
    for rank in (0, 0, 1, 2):
        pyro.set_rng_seed(0)
        RandomState().on_train_start(SimpleNamespace(global_rank=rank))
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    for generator in zip(*drawn[1:], strict=True):
        assert len(set(generator)) == 3
    pyro.set_rng_seed(0)
    assert draw() == drawn[0]  # the first rank draws as a run alone
