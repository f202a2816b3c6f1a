import csv
import gc
import re
import signal
import sys
from functools import partial

import pyro
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from pyro.distributions import Normal
from pyro.nn import PyroModule
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import experiments.harness.checkpoints
from experiments.files import UserError
from experiments.harness.checkpoints import read_run
from experiments.harness.options import TrainingOptions
from experiments.harness.training import ELBOTraining, fit, resolve_precision
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


class InOtherTerms(Training):
    def terms(self, name, value):
        return ("val_error", value**0.5) if name == "val_loss" else super().terms(name, value)


@pytest.mark.parametrize("batch_size", [4, 8], ids=["over batches", "over epochs"])
def test_the_bar_shows_the_loss_and_validation_in_the_terms_of_the_task(batch_size, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, fitted = train(tmp_path, InOtherTerms, epochs=2, batch_size=batch_size, progress=True)
    shown = "".join(capsys.readouterr())
    assert re.search(r"[ \[]loss=\d+\.\d+, val_error=", shown)
    assert f"val_error={fitted.history[-1]['val_loss'] ** 0.5:.3f}" in shown
    assert "val_loss" not in shown


def test_a_bar_that_is_no_terminal_prints_a_line_a_minute(tmp_path, capfd):
    train(tmp_path, epochs=6, progress=True)
    printed, shown = capfd.readouterr()
    assert (printed.count("\r"), shown.count("\r")) == (0, 2)  # at the beginning and at the end


@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_fused_adam_makes_the_same_steps(precision, tmp_path):
    """With its gradients clipped, which Lightning refuses to do in half precision."""
    losses = []
    for fused in (False, True):
        kind = partial(Training, fused=fused)
        module, fitted = train(tmp_path / str(fused), kind, precision=precision, gradient_clip=0.1)
        assert bool(module.configure_optimizers().defaults["fused"]) == fused
        losses.append(fitted.history[-1]["val_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


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


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Crash, RuntimeError), (Training, KeyboardInterrupt), (Terminated, KeyboardInterrupt)],
    ids=["crash", "ctrl-c", "sigterm"],
)
def test_a_resumed_run_equals_an_uninterrupted_one(kind, error, tmp_path, uninterrupted):
    """Two steps an epoch: it ends in the middle of epoch 3, behind the checkpoint after epoch 1."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(error):
        train(tmp_path, kind, at=(6,))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert_same(train(tmp_path, resume=True), uninterrupted)
    assert epochs_of(tmp_path) == list(range(6))


def test_nothing_is_left_of_a_finished_training(tmp_path):
    """A sweep trains many networks in one process; a signal handler of Lightning's would hold each of them."""

    def trainers():
        gc.collect()
        return sum(type(one) is Trainer for one in gc.get_objects())

    before = trainers()
    train(tmp_path, epochs=1)
    assert trainers() == before


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
    with pytest.raises(UserError, match="max_epochs=4"):
        train(tmp_path, epochs=4, resume=True)


class Worse(Training):
    def evaluate(self, batch):
        return {"loss": torch.tensor(float(self.current_epoch))}


class Never(Worse):
    training_step, interrupt = Crash.training_step, Crash.interrupt


@pytest.mark.parametrize(
    ("kind", "never", "patience", "epochs"), [(Training, Crash, 100, 6), (Worse, Never, 2, 3)], ids=["end", "stopped"]
)
def test_resuming_a_finished_run_trains_no_more(kind, never, patience, epochs, tmp_path, capsys):
    expected = train(tmp_path, kind, patience=patience, progress=True)
    assert len(expected[1].history) == epochs
    stopped = "stopped early after 3 epochs: none of the last 2 had as good a val_loss"
    assert (stopped in capsys.readouterr().out) == (epochs < 6)
    assert_same(train(tmp_path, never, at=range(100), resume=True, patience=patience), expected)


def test_the_best_weights_are_restored(tmp_path):
    module, fitted = train(tmp_path)
    losses = [row["val_loss"] for row in fitted.history]
    assert fitted.best_epoch == min(range(6), key=losses.__getitem__)
    # checkpoints are read without pickle
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    with safe_open(tmp_path / "checkpoints" / "best.safetensors", "pt") as best:
        assert (int(best.metadata()["epoch"]), last["epoch"]) == (fitted.best_epoch, 5)
    torch.testing.assert_close(load_file(tmp_path / "checkpoints" / "best.safetensors"), dict(module.state_dict()))


class Diverged(Training):
    def evaluate(self, batch):
        return {"loss": torch.tensor(float("nan"))}


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


@pytest.mark.parametrize(
    ("kind", "device", "said"),
    [
        (Diverged, "auto", "no epoch has a finite val_loss; try a smaller learning rate"),
        pytest.param(Training, "cuda", "torch finds no GPU; pass --device cpu", marks=NO_GPU),
    ],
)
def test_a_training_that_cannot_be_says_what_to_do(kind, device, said, tmp_path):
    with pytest.raises(UserError, match=said):
        train(tmp_path, kind, epochs=2, device=device)


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


def test_accumulated_steps_keep_the_scale_of_the_kl():
    """Two batches of four are one of eight, likelihood and KL."""
    gradients = []
    for size, accumulated in ((8, 1), (4, 2)):
        pyro.set_rng_seed(0)
        model = Model()
        model.dropout.p = 0.0
        # next to no noise
        module = Training(model, AttentionGuide(model, Weibull(1e8)), AttentionELBO(kl_weight=2.0), learning_rate=0.1)
        trainer = Trainer(
            max_epochs=1, accumulate_grad_batches=accumulated, accelerator="cpu", logger=False, callbacks=[Keep()],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        x = torch.linspace(-1, 1, 16).reshape(8, 2)
        data = TensorDataset(x, x.sum(-1))
        trainer.fit(module, DataLoader(data, batch_size=size), DataLoader(data, batch_size=8))
        assert module.global_step == 1
        gradients.append(module.kept)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-5)


class Keep(Callback):
    """The gradients of the last step."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        module.kept = {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}


def test_nothing_is_written_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    train(tmp_path / "out", epochs=1)
    assert list((tmp_path / "here").iterdir()) == []
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"environment.json", "history.csv", "checkpoints/last.ckpt", "checkpoints/best.safetensors"}


@pytest.mark.parametrize("able", [True, False])
def test_half_precision_where_the_processor_has_it(able, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: able)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    resolve_precision.cache_clear()
    losses = {
        precision: train(tmp_path / precision, epochs=1, precision=precision)[1].history[0]["loss"]
        for precision in ("32", "bf16-mixed")
    }
    resolve_precision.cache_clear()
    assert losses["bf16-mixed"] == pytest.approx(losses["32"], rel=0.1)
    assert (losses["bf16-mixed"] != losses["32"]) == able
    assert capsys.readouterr().err.count("no instructions for bf16-mixed; computed in 32 bits") == (not able)


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


# loggers


def test_tensorboard_gets_the_metrics_of_every_epoch(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, fitted = train(tmp_path, epochs=2, logger="tensorboard")
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("loss", "val_loss"):
        values = [event.value for event in found.Scalars(name)]
        assert values == pytest.approx([row[name] for row in fitted.history], rel=1e-6)


def test_without_tensorboard(tmp_path, monkeypatch):
    for name in ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE"):
        monkeypatch.setattr(f"lightning.fabric.loggers.tensorboard.{name}", False)
    with pytest.raises(UserError, match="tensorboard"):
        train(tmp_path, logger="tensorboard")


@pytest.mark.parametrize("batch_size", [4, 8])  # a bar over batches, and one over epochs of a single batch
def test_bars_show_the_loss_and_the_validation_metric(batch_size, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, fitted = train(tmp_path, epochs=2, batch_size=batch_size, progress=True)
    shown = "".join(capsys.readouterr())
    assert re.search(r"loss=-?\d+\.\d", shown)
    assert f"val_loss={fitted.history[-1]['val_loss']:.3f}" in shown
