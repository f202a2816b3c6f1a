"""A training of any task: what it is called, and its folder before and after it."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from experiments.files import user_errors
from experiments.folder import write_metrics
from experiments.options import TrainingOptions
from experiments.report.terminal import metrics_table
from experiments.training import Fitted, Trained, load_best

Config = TypeVar("Config", bound=TrainingOptions)
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

    @abstractmethod
    def restore(self, config: Config, folder: Path) -> Network:
        """Build the network of a finished run, without its weights."""

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


def run_folder(task: Task[Config, Any], config: Config) -> Path:
    """Return the folder of a run."""
    return config.out or Path("runs", task.folder(config))


def finish(folder: Path, trained: Trained[Any, Any], fitted: Fitted, metrics: Mapping[str, float]) -> dict[str, float]:
    """Write the metrics of a run, with those of its training, and return them."""
    every = {**metrics, **fitted.metrics, "parameters": trained.parameters}
    write_metrics(folder, every)
    return every


def load_trained(task: Task[Config, Network], config: Config) -> Network:
    """Load the network of a finished run, with the weights of its best epoch.

    Raises:
        UserError: The folder holds none.
    """
    folder = run_folder(task, config)
    with user_errors(*BAD_INPUT):
        trained = task.restore(config, folder)
        load_best(trained.module, folder)
    return trained


def show_run(task: Task[Config, Any], config: Config, metrics: Mapping[str, float]) -> None:
    """Print what the command of a task shows of a finished run."""
    folder = run_folder(task, config)
    for text in task.warnings(metrics):
        print(f"warning: {text}", file=sys.stderr)
    task.show(config, metrics, folder)
    print(f"\nsaved in {folder}")
