"""What the trainings of networks that write sentences have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from experiments.datasets.text.batches import BucketSampler, batch_loader
from experiments.harness.options import TrainingOptions
from experiments.harness.training import Fitted, Trained, fit_batches
from experiments.report.report import metrics_table
from experiments.run import Task
from experiments.sequence.evaluation import unigram_perplexity, verdict_of, warnings_of
from experiments.sequence.own_text import write_lines

Config = TypeVar("Config", bound=TrainingOptions)
Data = TypeVar("Data")
Network = TypeVar("Network", bound=Trained[Any, Any])


@dataclass(frozen=True)
class Encoded:
    """Training and validation data as numbers of word pieces."""

    train: Any  # what a batch of training data is taken from
    val: Any
    sampler: BucketSampler  # chooses the batches of training data
    targets: Sequence[Tensor]  # the sentences of the training data that are learned to be written, each once


class SequenceTask(Task[Config, Data, Network]):
    """A network that writes sentences."""

    file: str  # of the sentences that it writes of the test data

    @abstractmethod
    def encode(self, trained: Network, data: Data) -> Encoded:
        """What is trained on."""

    @abstractmethod
    def scores(self, trained: Network, data: Data) -> tuple[dict[str, float], list[str]]:
        """Metrics on the test data, and the sentences that the network writes of them."""

    def fit(self, trained: Network, data: Data, folder: Path) -> Fitted:
        config: Any = trained.config
        encoded = self.encode(trained, data)
        in_order = BucketSampler(encoded.val.lengths, sentences=config.batch_size, shuffle=False)
        loaders = batch_loader(encoded.train, encoded.sampler), batch_loader(encoded.val, in_order)
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.patience)

    def evaluate(self, trained: Network, data: Data, fitted: Fitted, folder: Path) -> dict[str, float]:
        network: Any = trained
        metrics, sentences = self.scores(trained, data)
        if sentences:
            write_lines(folder / self.file, sentences)
        encoded = self.encode(trained, data)
        unigram = unigram_perplexity(encoded.targets, encoded.val.targets, vocabulary=len(network.vocabulary))
        perplexity = math.exp(fitted.history[fitted.best_epoch]["val_loss"])
        return metrics | {"val_ppl": perplexity, "val_ppl_unigram": unigram}

    def warnings(self, metrics: Mapping[str, float]) -> list[str]:
        return warnings_of(metrics)

    def show(self, config: Config, metrics: Mapping[str, float], folder: Path) -> None:  # noqa: ARG002
        print(metrics_table(metrics))
        print(verdict_of(metrics))
