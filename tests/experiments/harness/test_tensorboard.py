"""TensorBoard beside history.csv: the same numbers, also after Ctrl-C and a crash, and what is said without it."""

import csv
import errno
import os
import sys
from types import SimpleNamespace

import pytest
from lightning.fabric.loggers import Logger

from experiments.files import UserError
from experiments.harness import training as harness_training
from experiments.harness.callbacks import History
from experiments.harness.cli import run_script
from experiments.harness.folder import open_run, saved_options
from experiments.harness.options import TrainingOptions
from tests.experiments.harness.test_training import Crash, Training, train


class Record(Logger):
    """Keeps what it is told."""

    name, version = "record", 0

    def __init__(self):
        self.rows, self.ends = [], []

    def log_metrics(self, metrics, step=None):
        self.rows.append({"epoch": step, **metrics})

    def log_hyperparams(self, *_, **__):
        raise NotImplementedError

    def finalize(self, status):
        self.ends.append(status)


@pytest.fixture
def opened(monkeypatch):
    """The loggers of each training, in the place of TensorBoard's."""
    found = []
    monkeypatch.setattr(harness_training, "require_logger", lambda _: None)
    monkeypatch.setattr(harness_training, "tensorboard_logger", lambda _: found.append(Record()) or found[-1])
    return found


def history(folder):
    with (folder / "history.csv").open() as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


STOPS = {  # two steps an epoch, a checkpoint after every second one
    "crash": (Crash, (7,), RuntimeError),
    "ctrl-c": (Training, (4,), KeyboardInterrupt),
    "ctrl-c twice": (Training, (6, 7), KeyboardInterrupt),
}


@pytest.mark.parametrize(("kind", "at", "error"), STOPS.values(), ids=STOPS.keys())
def test_a_logger_gets_the_rows_of_the_history_and_after_a_stop_all_of_them_again(kind, at, error, tmp_path, opened):
    with pytest.raises(error):
        train(tmp_path, kind, at=at, logger="tensorboard")
    assert opened[0].rows == history(tmp_path)
    _, fitted = train(tmp_path, resume=True, logger="tensorboard")
    assert opened[1].rows == fitted.history == history(tmp_path)
    assert [row["epoch"] for row in opened[1].rows] == list(range(6))
    assert [logger.ends for logger in opened] == [["finished"], ["finished"]]


def test_no_logger_unless_it_is_asked_for_and_none_of_another_rank(tmp_path, opened):
    train(tmp_path, epochs=1)
    other = History(tmp_path / "other.csv", open_logger=lambda: pytest.fail("rank 1 has opened a logger"))
    other.on_fit_start(SimpleNamespace(is_global_zero=False))
    assert opened == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_said_to_be_full(wrapped, tmp_path):
    class Full(Record):
        def log_metrics(self, metrics, step=None):
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not wrapped:
                raise error
            raise ValueError("you tried to log 1.0 which is currently not supported") from error

    log = History(tmp_path / "history.csv", Full)
    log.rows = [{"epoch": 0, "loss": 1.0, "step_ms": 1.0}]
    with pytest.raises(UserError, match=rf"{tmp_path} cannot be written: No space left on device; free some space"):
        log.on_fit_start(SimpleNamespace(is_global_zero=True))


def test_a_run_may_be_followed_in_another_way_when_it_is_resumed(tmp_path):
    open_run(tmp_path, TrainingOptions())
    open_run(tmp_path, TrainingOptions(resume=True, logger="tensorboard"))
    with pytest.raises(UserError, match=r"another configuration .*seed 0 instead of 1"):
        open_run(tmp_path, TrainingOptions(resume=True, seed=1))
    assert saved_options(tmp_path)["logger"] == "csv"


@pytest.fixture
def missing(monkeypatch):
    """As if TensorBoard were not installed."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)


@pytest.mark.usefixtures("missing")
def test_without_tensorboard_nothing_is_begun(tmp_path, capsys):
    with pytest.raises(UserError, match=r"not installed .*; pip install tensorboard, or leave out --logger"):
        train(tmp_path, logger="tensorboard")
    options = ["--logger", "tensorboard", "--out", str(tmp_path)]
    code = run_script(TrainingOptions, lambda _: pytest.fail("begun"), name="script", arguments=options)
    assert code == 1
    assert "pip install tensorboard" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "at", "error"), STOPS.values(), ids=STOPS.keys())
def test_tensorboard_shows_every_epoch_once(kind, at, error, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(error):
        train(tmp_path, kind, at=at, logger="tensorboard")
    _, fitted = train(tmp_path, resume=True, logger="tensorboard")
    (file,) = (tmp_path / "tensorboard").iterdir()
    found = EventAccumulator(str(file)).Reload()
    assert set(found.Tags()["scalars"]) == fitted.history[0].keys() - {"epoch"}
    for name in found.Tags()["scalars"]:
        events = found.Scalars(name)
        assert [event.step for event in events] == list(range(6))
        assert [event.value for event in events] == pytest.approx([row[name] for row in fitted.history], rel=1e-6)
