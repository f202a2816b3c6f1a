"""One training of any task: the folder, the data, the network, its metrics."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from experiments.files import user_errors
from experiments.harness.folder import exclusive, open_training, write_metrics
from experiments.harness.options import TrainingOptions
from experiments.harness.training import Fitted, Trained, load_best
from experiments.report.report import metrics_table

Config = TypeVar("Config", bound=TrainingOptions)
Data = TypeVar("Data")
Network = TypeVar("Network", bound=Trained[Any, Any])


class Task(ABC, Generic[Config, Data, Network]):
    """What a task says of its trainings; :func:`run` does the rest."""

    config: type[Config]  # the options of a training, a dataclass
    script: str  # the module that trains on the command line
    named: Sequence[str] = ()  # options, such as a pretrained model, that the file of a study is named after

    @abstractmethod
    def folder(self, config: Config) -> str:
        """Name of the folder of a run below runs/."""

    @abstractmethod
    def load(self, config: Config) -> Data:
        """All data, so that nothing is found bad or missing after the training."""

    @abstractmethod
    def build(self, config: Config, data: Data, folder: Path) -> Network:
        """Network and guide, untrained; what they need beside their weights is put into the folder."""

    def restore(self, config: Config, folder: Path) -> Network:
        """The network of a finished run, without its weights; a task that needs no data for it loads none."""
        return self.build(config, self.load(config), folder)

    @abstractmethod
    def fit(self, trained: Network, data: Data, folder: Path) -> Fitted:
        """Train the network, and leave it with the weights that are kept."""

    @abstractmethod
    def evaluate(self, trained: Network, data: Data, fitted: Fitted, folder: Path) -> dict[str, float]:
        """Metrics of the trained network; predictions are put into the folder."""

    def warnings(self, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        """What shows that a network has learned nothing, a sentence each."""
        return ()

    def show(self, config: Config, metrics: Mapping[str, float], folder: Path) -> None:  # noqa: ARG002
        """What the command shows of a finished run: a table, and pictures in the folder."""
        print(metrics_table(metrics))

    def planned(self, config: Config) -> bool:
        """Whether the learning rate is planned over all epochs, whose number then stays."""
        return bool(getattr(config, "planned", False))


def run_folder(task: Task[Config, Any, Any], config: Config) -> Path:
    """Folder of a run."""
    return config.out or Path("runs", task.folder(config))


def load_trained(task: Task[Config, Any, Network], config: Config) -> Network:
    """The network of a finished run, with the weights that were kept.

    Raises:
        UserError: The folder holds none.
    """
    folder = run_folder(task, config)
    with user_errors(ValueError, OSError, ImportError):
        trained = task.restore(config, folder)
        load_best(trained.module, folder)
    return trained


@exclusive
def run(task: Task[Config, Data, Network], config: Config) -> dict[str, float]:
    """Train, evaluate and save what the folder does not hold yet.

    Raises:
        UserError: Data, options or folder are not right.
        KeyboardInterrupt: Stopped; ``resume`` continues.
    """
    folder = run_folder(task, config)
    with user_errors(ValueError, OSError, ImportError):
        if config.resume and (finished := open_training(folder, config, planned=task.planned(config))) is not None:
            return finished  # it needs no data
        data = task.load(config)
        if not config.resume:  # only now: where data are missing, the run that is to be overwritten stays
            open_training(folder, config, planned=task.planned(config))
        trained = task.build(config, data, folder)
    fitted = task.fit(trained, data, folder)
    trained.module.eval()
    found = task.evaluate(trained, data, fitted, folder)
    metrics = {**found, **fitted.metrics, "parameters": trained.parameters}
    write_metrics(folder, metrics)
    return metrics


def run_and_show(task: Task[Config, Any, Any], config: Config) -> None:
    """The command of a task."""
    metrics, folder = run(task, config), run_folder(task, config)
    for text in task.warnings(metrics):
        print(f"warning: {text}", file=sys.stderr)
    task.show(config, metrics, folder)
    print(f"\nsaved in {folder}")
