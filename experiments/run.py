"""A training of any task: its folder before and after it, and what its command shows."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from experiments.callbacks import require_weights
from experiments.files import UserError, user_errors
from experiments.folder import check_run, hold, is_first, read_metrics, saved_options, start_run, write_metrics
from experiments.options import RunOptions, TrainingOptions
from experiments.report.terminal import metrics_table
from experiments.training import Trained, load_best

Config = TypeVar("Config", bound=RunOptions)
Network = TypeVar("Network", bound=Trained[Any, Any])

BAD_INPUT = (ValueError, OSError, ImportError)
"""What a library raises where data, options or folder are not right."""


class Task(ABC, Generic[Config, Network]):
    """Trainings of one kind; :meth:`run` is one of them, from its options to its metrics."""

    config: type[Config]  # the options of a training, a dataclass
    script: str  # the module that trains on the command line
    named: Sequence[str] = ()  # options, such as a pretrained model, that the file of a study is named after

    @abstractmethod
    def folder(self, config: Config) -> str:
        """Name of the folder of a run below runs/."""

    @abstractmethod
    def run(self, config: Config) -> dict[str, float]:
        """Train, evaluate and save what the folder does not hold yet: all metrics.

        Raises:
            UserError: Data, options or folder are not right.
            KeyboardInterrupt: Stopped; ``resume`` continues.
        """

    def restore(self, config: Config, folder: Path) -> Network:
        """Build the network of a finished run, without its weights; not needed where runs keep no network."""
        raise NotImplementedError(f"runs of {self.script} keep no network")

    def warnings(self, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        """Say what shows that a network has learned nothing, a sentence each."""
        return ()

    def main_metrics(self, config: Config, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        """Return the few metrics that the command shows: the one that the task is judged by, then others.

        Those that a run does not have are left out; all are shown where this is empty.
        """
        return ()

    def show(self, config: Config, metrics: Mapping[str, float], folder: Path) -> None:  # noqa: ARG002
        """Show a finished run: its main metrics, and pictures in the folder."""
        print(metrics_table(metrics, self.main_metrics(config, metrics)))


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run, which this process holds: :func:`run_folder` gives it."""

    path: Path
    config: RunOptions
    metrics: dict[str, float] | None  # of a finished run that is resumed; None where there is something to train
    is_held: bool  # False where there was no folder yet, which begin then makes and holds
    exit: ExitStack  # what ends with the run

    def begin(self) -> Path:
        """Remove the run that ``overwrite`` replaces, save the configuration, and return the folder.

        Called when the data are loaded: where they are missing, the run that was to be replaced stays.
        """
        if not self.is_held:
            self.exit.enter_context(hold(self.path))
        check_run(self.path, self.config, free=_free(self.config))
        if self.config.resume and is_first():
            (self.path / "metrics.json").unlink(missing_ok=True)  # of fewer epochs than are asked for now
        start_run(self.path, self.config, free=_free(self.config))
        return self.path

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Write the metrics of the run, which end it, and return them."""
        write_metrics(self.path, metrics)
        return dict(metrics)


@contextmanager
def run_folder(task: Task[Config, Any], config: Config) -> Iterator[RunFolder]:
    """Hold the folder of a run from before its data are loaded until its metrics are written.

    This is the whole of ``--resume`` and ``--overwrite``: the metrics of a finished run are there to be returned, a run
    that was stopped goes on from its last checkpoint (:func:`experiments.training.fit`), and anything else in the
    folder is refused. A finished training may be resumed with more epochs, and ends with the numbers of a training that
    was started with so many. Where the learning rate is ``planned`` over all epochs the number of epochs stays.

    Yields:
        The folder. Return its ``metrics`` where there are some; else load the data, then ``begin``, train and
        ``finish``.

    Raises:
        UserError: Another process holds the folder, or what it holds cannot be resumed or overwritten as is asked.
    """
    folder = path_of(task, config)
    with ExitStack() as exit_stack:
        is_there = folder.is_dir()  # missing data leave no empty folder
        if is_there:
            exit_stack.enter_context(hold(folder))
        yield RunFolder(folder, config, _finished(folder, config), is_there, exit_stack)


def _free(config: RunOptions) -> tuple[str, ...]:
    """Options that may differ from those of the run that is resumed."""
    return ("max_epochs",) if isinstance(config, TrainingOptions) and not config.planned else ()


def _finished(folder: Path, config: RunOptions) -> dict[str, float] | None:
    """Return the metrics of the run in a folder if it needs no more training, after a check of what is there."""
    metrics = read_metrics(folder) if config.resume else None
    if metrics is None or not isinstance(config, TrainingOptions) or config.planned or "epochs" not in metrics:
        check_run(folder, config, free=_free(config))
        return metrics
    epochs, before = int(metrics["epochs"]), int(saved_options(folder)["max_epochs"])
    if epochs > config.max_epochs:
        raise UserError(
            f"{folder} holds a run of {epochs} epochs, and max_epochs is {config.max_epochs}; pass --max-epochs "
            f"{epochs} or more, choose another --out, or pass --overwrite to train again"
        )
    check_run(folder, replace(config, max_epochs=before))
    stopped_early = epochs < before
    return metrics if stopped_early or epochs == config.max_epochs else None


def path_of(task: Task[Config, Any], config: Config) -> Path:
    """Return the folder of a run."""
    return config.out or Path("runs", task.folder(config))


def load_trained(task: Task[Config, Network], config: Config) -> Network:
    """Load the network of a finished run, with the weights of its best epoch.

    Raises:
        UserError: The folder holds none.
    """
    folder = path_of(task, config)
    require_weights(folder)
    with user_errors(*BAD_INPUT):
        trained = task.restore(config, folder)
        load_best(trained.module, folder)
    return trained


def show_run(task: Task[Config, Any], config: Config, metrics: Mapping[str, float]) -> None:
    """Print what the command of a task shows of a finished run."""
    folder = path_of(task, config)
    for text in task.warnings(metrics):
        print(f"warning: {text}", file=sys.stderr)
    task.show(config, metrics, folder)
    print(f"\nsaved in {folder}")
