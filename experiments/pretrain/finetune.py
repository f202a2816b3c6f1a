"""Fine-tuning of a pretrained encoder on SST-2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.batches import batch_loader, padded
from experiments.datasets.text.glue import CLASSES, LabelledPairs, load_sst2
from experiments.datasets.text.masked_text import EpochSampler, encode_sentences
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.harness.folder import saved_config
from experiments.harness.training import (
    FITTED,
    Fitted,
    OneCycleTraining,
    PriorFactory,
    Trained,
    fit_batches,
    load_best,
    seeded_build,
)
from experiments.pretrain.config import FinetuneConfig, PretrainConfig
from experiments.pretrain.model import TrainedEncoder, build, mean_probabilities
from experiments.report.classification import SCORES, score
from experiments.run import Task, run_and_show
from experiments.sequence.encoder import text_encoder
from models.text import TextClassifier
from pyro_attention import predict

_DEFINITIONS = {f"test_{name}": f"{text}; test sentences, mean probability over posterior samples (num_samples of the "
    "configuration; for soft plain)" for name, text in SCORES.items()} | {
    "test_accuracy_before": "the same accuracy ahead of all fine-tuning: its output layer is random",
    "val_accuracy": "fraction of correct classes on the validation sentences at the best epoch, attention at its mean",
    **FITTED,
}  # fmt: skip


class LabelledBatch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class LabelledSentences(Dataset[LabelledBatch]):
    """Labelled sentences as word pieces, of a length at most; indexed by an epoch and a list of places."""

    def __init__(self, text: LabelledPairs, vocabulary: Vocabulary, *, length: int) -> None:
        self.rows, self.labels = encode_sentences(text.first, vocabulary, length=length), text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> LabelledBatch:
        _, places = index
        return LabelledBatch(*padded([self.rows[place] for place in places]), self.labels[list(places)])

    def loader(self, **options: Any) -> DataLoader[LabelledBatch]:
        """Batches of similar lengths; options as of :class:`EpochSampler`."""
        return batch_loader(self, EpochSampler(self.rows, **options))


class _Training(OneCycleTraining):
    def observations(self, batch: LabelledBatch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: LabelledBatch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


Reviews = tuple[TrainedEncoder, dict[str, LabelledSentences]]  # the encoder to begin with, and the splits


@dataclass(frozen=True)
class TrainedClassifier(Trained[FinetuneConfig, TextClassifier]):
    """A classifier of sentences, with its accuracy on the test sentences ahead of all fine-tuning."""

    accuracy_before: float


class SST2Task(Task[FinetuneConfig, Reviews, TrainedClassifier]):
    """Classes of sentences, by a pretrained encoder."""

    config = FinetuneConfig
    script = "experiments.pretrain"

    def folder(self, config: FinetuneConfig) -> str:
        return f"finetune/sst2-{config.run.name}{'-scratch' * config.scratch}-{config.seed}"

    def planned(self, config: FinetuneConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: FinetuneConfig) -> Reviews:
        texts = load_sst2(train=config.train, data_root=config.data_root)
        saved = saved_config(config.run, PretrainConfig, script=self.script, device=config.device)
        start = build(saved, Vocabulary.load(config.run / "vocabulary.json"))
        load_best(start.module, config.run)
        length = start.config.length
        return start, {split: LabelledSentences(text, start.vocabulary, length=length) for split, text in texts.items()}

    def build(self, config: FinetuneConfig, data: Reviews, folder: Path) -> TrainedClassifier:  # noqa: ARG002
        untrained = Trained[FinetuneConfig, TextClassifier](config, _classifier(config, data[0]))
        accuracy = score(*_probabilities(untrained, data[1]["test"]))["accuracy"]
        return TrainedClassifier(config, untrained.module, accuracy)

    def fit(self, trained: TrainedClassifier, data: Reviews, folder: Path) -> Fitted:
        config, splits = trained.config, data[1]
        loaders = (
            splits["train"].loader(sentences=config.batch_size, seed=config.seed),
            splits["val"].loader(sentences=100, shuffle=False),
        )
        return fit_batches(
            config, trained.module, *loaders, folder=folder, patience=config.max_epochs, monitor={"val_accuracy": "max"}
        )

    def evaluate(
        self, trained: TrainedClassifier, data: Reviews, fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        scores = score(*_probabilities(trained, data[1]["test"]))
        best = fitted.history[fitted.best_epoch]
        before = {"test_accuracy_before": trained.accuracy_before, "val_accuracy": best["val_accuracy"]}
        return {f"test_{name}": value for name, value in scores.items()} | before

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:  # noqa: ARG002
        return _DEFINITIONS


def _classifier(config: FinetuneConfig, start: TrainedEncoder) -> _Training:
    scheme = start.config.build_scheme(**({} if config.kl_weight is None else {"kl_weight": config.kl_weight}))

    def make(prior: PriorFactory) -> TextClassifier:
        encoder = text_encoder(start.config, start.vocabulary, prior)
        return TextClassifier(encoder, len(CLASSES), dropout=start.config.dropout)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    if not config.scratch:
        model.encoder.load_state_dict(start.model.encoder.state_dict())
    return _Training(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate).to(start.device)


def _probabilities(trained: Trained[FinetuneConfig, TextClassifier], data: LabelledSentences) -> tuple[Tensor, Tensor]:
    """Class probabilities ``[sentences, classes]`` and labels."""
    found, labels = list[Tensor](), list[Tensor]()
    for batch in data.loader(sentences=100, shuffle=False):
        there = LabelledBatch(*(tensor.to(trained.device) for tensor in batch))
        found.append(mean_probabilities(trained, there, lambda logits: logits.softmax(-1)))
        labels.append(there.labels)
    return torch.cat(found), torch.cat(labels)


finetune = partial(run_and_show, SST2Task())
