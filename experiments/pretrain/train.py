"""Pretraining of a small Transformer encoder as a masked language model, and its fine-tuning on SST-2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.batches import batch_loader, padded
from experiments.datasets.text.glue import CLASSES, LabeledPairs, load_sst2
from experiments.datasets.text.masked_text import EpochSampler, MaskedBatch, MaskedText, encode_sentences, load_english
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import user_errors
from experiments.harness.folder import saved_config
from experiments.harness.training import (
    FITTED,
    Fitted,
    OneCycleTraining,
    PriorFactory,
    Trained,
    fit_batches,
    hybrid_metrics,
    mean_prediction,
    resolve_device,
    seeded_build,
)
from experiments.pretrain.config import FinetuneConfig, PretrainConfig
from experiments.report.classification import SCORES, score
from experiments.run import Task, run, run_and_show
from experiments.sequence.encoder import text_encoder
from experiments.sequence.model import load_run, run_vocabulary
from models.text import MaskedLanguageModel, TextClassifier
from pyro_attention import Dense, predict, sample_posterior
from pyro_attention.analysis import key_mass

EPSILON = 1e-8  # a key whose weights from all queries sum to less is explained away

_DEFINITIONS = {
    "test_ppl": "perplexity per hidden word piece of the test sentences, by the mean over posterior samples",
    "test_accuracy": "fraction of hidden test word pieces that are the most probable ones",
    "val_ppl": "perplexity per hidden word piece of the validation sentences at the best epoch, attention at its mean",
    "val_accuracy": "fraction of hidden validation word pieces that are the most probable ones, at the best epoch",
    "explained_away": f"fraction of keys whose attention weights from all queries sum to less than {EPSILON:g}",
    "key_mass_1_percent": "1st percentile of the sum of the mean attention weights that a key gets from all queries",
    "sst2_accuracy": "fraction of correct classes on the test sentences of SST-2 after fine-tuning",
    "scratch_accuracy": "the same of fresh weights, which were not pretrained",
    **FITTED,
}
_HYBRID = "share of doubly normalised attention in this layer and head, at the best epoch"  # hybrid_layers.LAYER_HEAD


class MaskedTraining(OneCycleTraining):
    """Trains a :class:`MaskedLanguageModel`."""

    def observations(self, batch: MaskedBatch) -> int:
        return len(batch.target)

    def evaluate(self, batch: MaskedBatch) -> dict[str, Tensor]:
        model, guide = self.objective.model, self.objective.guide
        logits = model.likelihood(predict(guide, *batch, num_samples=1, noise="none").mean).logits
        loss = torch.nn.functional.nll_loss(logits, batch.target)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.target).float().mean()}


@dataclass(frozen=True)
class TrainedEncoder(Trained[PretrainConfig, MaskedLanguageModel]):
    """A masked language model with its guide and its word pieces."""

    vocabulary: Vocabulary


def load_vocabulary(config: PretrainConfig, folder: Path) -> Vocabulary:
    """The vocabulary in the folder; else a new one, which is then put there."""

    def train() -> Vocabulary:
        texts = load_english(config.dataset, data_root=config.data_root)  # all, also where fewer are trained on
        return train_tokenizer(texts["train"], size=config.vocabulary)

    return run_vocabulary(folder, None, train)


def build(config: PretrainConfig, vocabulary: Vocabulary) -> TrainedEncoder:
    """Network and guide, untrained."""
    scheme = config.build_scheme()
    model = seeded_build(
        lambda prior: MaskedLanguageModel(text_encoder(config, vocabulary, prior)), scheme.prior, seed=config.seed
    )
    module = MaskedTraining(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate)
    return TrainedEncoder(config, module.to(resolve_device(config.device)), vocabulary)


# how well it predicts


def hidden_batches(trained: TrainedEncoder) -> Iterator[MaskedBatch]:
    """The test sentences; what is hidden in them is the same for all runs with one vocabulary."""
    config, size = trained.config, len(trained.vocabulary)
    sentences = load_english(config.dataset, data_root=config.data_root)["test"]
    rows = encode_sentences(sentences, trained.vocabulary, length=config.length)
    data = MaskedText(rows, vocabulary_size=size, share=config.masked)
    for batch in batch_loader(data, EpochSampler(rows, sentences=100, shuffle=False)):
        yield MaskedBatch(*(tensor.to(trained.device) for tensor in batch))


def token_scores(trained: TrainedEncoder) -> dict[str, float]:
    """Perplexity and accuracy on the hidden test word pieces; see the definitions."""
    nll, correct, count, likelihood = 0.0, 0, 0, trained.model.likelihood
    for batch in hidden_batches(trained):
        probabilities = mean_prediction(trained, batch, lambda features: likelihood(features).logits.exp())
        nll -= probabilities.gather(-1, batch.target[:, None]).double().log().sum().item()
        correct += int((probabilities.argmax(-1) == batch.target).sum())
        count += len(batch.target)
    return {"test_ppl": math.exp(nll / count), "test_accuracy": correct / count}


def key_masses(trained: TrainedEncoder) -> dict[str, Tensor]:
    """Sum of the weights of every key, by attention site: ``[heads, test word pieces]``, attention at its mean."""
    found: dict[str, list[Tensor]] = {}
    for batch in hidden_batches(trained):
        weights = sample_posterior(trained.guide, *batch, num_samples=1, noise="none")
        layout = Dense((batch.mask[:, :, None] & batch.mask[:, None])[:, None])
        for site, sample in weights.items():
            mass = key_mass(sample[0], layout=layout)
            found.setdefault(site, []).append(mass.transpose(0, 1)[:, batch.mask].cpu())
    return {site: torch.cat(masses, 1) for site, masses in found.items()}


# fine-tuning on SST-2


_OF_REVIEWS = {f"test_{name}": f"{text}; test sentences, mean probability over posterior samples (num_samples of the "
    "configuration; for soft plain)" for name, text in SCORES.items()} | {
    "test_accuracy_before": "the same accuracy ahead of all fine-tuning: its output layer is random",
    "val_accuracy": "fraction of correct classes on the validation sentences at the best epoch, attention at its mean",
    **FITTED,
}  # fmt: skip


class LabeledBatch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class LabeledSentences(Dataset[LabeledBatch]):
    """Labeled sentences as word pieces, of a length at most; indexed by an epoch and a list of places."""

    def __init__(self, text: LabeledPairs, vocabulary: Vocabulary, *, length: int) -> None:
        self.rows, self.labels = encode_sentences(text.first, vocabulary, length=length), text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> LabeledBatch:
        _, places = index
        return LabeledBatch(*padded([self.rows[place] for place in places]), self.labels[list(places)])

    def loader(self, **options: Any) -> DataLoader[LabeledBatch]:
        """Batches of similar lengths; options as of :class:`EpochSampler`."""
        return batch_loader(self, EpochSampler(self.rows, **options))


class ReviewTraining(OneCycleTraining):
    def observations(self, batch: LabeledBatch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: LabeledBatch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


Reviews = tuple[TrainedEncoder, dict[str, LabeledSentences]]  # the encoder to begin with, and the splits


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
        start = load_run(saved, config.run, build)
        length = start.config.length
        return start, {split: LabeledSentences(text, start.vocabulary, length=length) for split, text in texts.items()}

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
        return _OF_REVIEWS


def _classifier(config: FinetuneConfig, start: TrainedEncoder) -> ReviewTraining:
    scheme = start.config.build_scheme(**({} if config.kl_weight is None else {"kl_weight": config.kl_weight}))

    def make(prior: PriorFactory) -> TextClassifier:
        encoder = text_encoder(start.config, start.vocabulary, prior)
        return TextClassifier(encoder, len(CLASSES), dropout=start.config.dropout)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    if not config.scratch:
        model.encoder.load_state_dict(start.model.encoder.state_dict())
    return ReviewTraining(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate).to(start.device)


def _probabilities(trained: Trained[FinetuneConfig, TextClassifier], data: LabeledSentences) -> tuple[Tensor, Tensor]:
    """Class probabilities ``[sentences, classes]`` and labels."""
    found, labels = list[Tensor](), list[Tensor]()
    for batch in data.loader(sentences=100, shuffle=False):
        there = LabeledBatch(*(tensor.to(trained.device) for tensor in batch))
        found.append(mean_prediction(trained, there, lambda logits: logits.softmax(-1)))
        labels.append(there.labels)
    return torch.cat(found), torch.cat(labels)


finetune = partial(run_and_show, SST2Task())


# pretraining


Sentences = Mapping[str, Sequence[str]]  # by split


class PretrainTask(Task[PretrainConfig, Sentences, TrainedEncoder]):
    """Hidden word pieces of sentences."""

    config = PretrainConfig
    script = "experiments.pretrain"

    def folder(self, config: PretrainConfig) -> str:
        return f"pretrain/{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}"

    def planned(self, config: PretrainConfig) -> bool:  # noqa: ARG002
        return True

    def load(self, config: PretrainConfig) -> Sentences:
        if config.finetune_epochs:
            load_sst2(data_root=config.data_root)
        return load_english(config.dataset, limit=config.sentences, data_root=config.data_root)

    def build(self, config: PretrainConfig, data: Sentences, folder: Path) -> TrainedEncoder:  # noqa: ARG002
        return build(config, load_vocabulary(config, folder))

    def restore(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedEncoder, data: Sentences, folder: Path) -> Fitted:
        config, vocabulary = trained.config, trained.vocabulary
        loaders = []
        for split in ("train", "val"):
            with user_errors(ValueError):
                rows = encode_sentences(data[split], vocabulary, length=config.length)
            text = MaskedText(rows, vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            order = {"seed": config.seed} if split == "train" else {"shuffle": False}
            loaders.append(batch_loader(text, EpochSampler(rows, sentences=config.batch_size, **order)))
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.max_epochs)

    def evaluate(
        self, trained: TrainedEncoder, data: Sentences, fitted: Fitted, folder: Path  # noqa: ARG002
    ) -> dict[str, float]:  # fmt: skip
        config, best = trained.config, fitted.history[fitted.best_epoch]
        mass = torch.cat(list(key_masses(trained).values())).flatten()
        rank = max(1, round(0.01 * mass.numel()))  # torch.quantile takes no more than 16 million numbers
        metrics = token_scores(trained) | hybrid_metrics(trained.model)
        metrics |= {
            "val_ppl": math.exp(best["val_loss"]),
            "val_accuracy": best["val_accuracy"],
            "explained_away": (mass < EPSILON).double().mean().item(),
            "key_mass_1_percent": mass.kthvalue(rank).values.item(),
        }
        if config.finetune_epochs:
            for name, scratch in (("sst2", False), ("scratch", True)):
                # whatever is there may have begun with other weights
                how = config.for_runs() | {"resume": False, "overwrite": True}
                finetuning = FinetuneConfig(
                    **how, run=folder, scratch=scratch, seed=config.seed, max_epochs=config.finetune_epochs,
                    num_samples=config.num_samples, out=folder / name,
                )  # fmt: skip
                metrics[f"{name}_accuracy"] = run(SST2Task(), finetuning)["test_accuracy"]
        return metrics

    def definitions(self, metrics: Mapping[str, float]) -> Mapping[str, str]:
        return {name: _DEFINITIONS.get(name, _HYBRID) for name in metrics}


train = partial(run_and_show, PretrainTask())
