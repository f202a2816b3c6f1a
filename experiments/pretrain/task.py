"""Pretraining of a small Transformer as a masked language model, its fine-tuning on SST-2, and its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.data.storage import SPLITS
from experiments.data.text.batches import Sentences, Vocabulary, padded, train_tokenizer
from experiments.data.text.documents import PairBatch
from experiments.data.text.glue import CLASSES, LabeledPairs, load_sst2
from experiments.data.text.masked_text import encode_sentences
from experiments.files import user_errors
from experiments.normalizer_report import save_masses, show_normalizer
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.texts import HiddenBatch, Texts, hidden_pieces, load_texts
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.sequence.model import TrainedText, run_vocabulary, text_encoder
from experiments.training import (
    Fitted,
    OneCycleTraining,
    PriorFactory,
    Trained,
    fit_batches,
    hybrid_metrics,
    masses_of_keys,
    mean_prediction,
    resolve_device,
    seeded_build,
)
from models.text import MaskedLanguageModel, TextClassifier
from pyro_attention import predict, sample_posterior


class MaskedTraining(OneCycleTraining):
    """Training of a :class:`MaskedLanguageModel`."""

    def observations(self, batch: HiddenBatch) -> int:
        return len(batch.target)

    def evaluate(self, batch: HiddenBatch) -> dict[str, Tensor]:
        model, guide, count = self.objective.model, self.objective.guide, len(batch.target)
        features = predict(guide, *batch, num_samples=1, noise="none").mean
        logits = model.likelihood(features[:count]).logits
        loss = torch.nn.functional.nll_loss(logits, batch.target)
        metrics = {"loss": loss, "accuracy": (logits.argmax(-1) == batch.target).float().mean()}
        if isinstance(batch, PairBatch):
            logits = model.order_logits(features[count:])
            metrics["token_loss"] = loss  # of hidden pieces alone, for the perplexity
            metrics["loss"] = loss + torch.nn.functional.cross_entropy(logits, batch.order)
            metrics["order_accuracy"] = (logits.argmax(-1) == batch.order).float().mean()
        return metrics


TrainedEncoder = TrainedText[PretrainConfig, MaskedLanguageModel]


def build(config: PretrainConfig, vocabulary: Vocabulary) -> TrainedEncoder:
    """Build the untrained network with its guide."""
    scheme = config.build_scheme()
    model = seeded_build(
        lambda prior: MaskedLanguageModel(
            text_encoder(config, vocabulary, prior), sentence_order=config.sentence_order
        ),
        scheme.prior, seed=config.seed,
    )  # fmt: skip
    module = MaskedTraining(model, scheme.guide(model), scheme.objective(), learning_rate=config.learning_rate)
    return TrainedEncoder(config, module.to(resolve_device(config.device)), vocabulary)


# predictions of hidden word pieces


def hidden_batches(trained: TrainedEncoder) -> Iterator[HiddenBatch]:
    """Return batches of the test sentences; runs with one vocabulary have the same hidden pieces."""
    config = trained.config
    data = hidden_pieces(config, trained.vocabulary, load_texts(config)["test"], seed=0)
    return data.batches(trained.device, sentences=100)


def token_scores(trained: TrainedEncoder) -> dict[str, float]:
    """Return perplexity and accuracy on the hidden test word pieces, and with pairs the accuracy of their order."""
    nll, correct, count, ordered = 0.0, 0, 0, list[Tensor]()
    for batch in hidden_batches(trained):
        probabilities = token_probabilities(trained, batch)
        nll -= probabilities.gather(-1, batch.target[:, None]).double().log().sum().item()
        correct += int((probabilities.argmax(-1) == batch.target).sum())
        count += len(batch.target)
        if isinstance(batch, PairBatch):
            ordered.append(order_probabilities(trained, batch).argmax(-1) == batch.order)
    scores = {"test_ppl": math.exp(nll / count), "test_accuracy": correct / count}
    return scores | ({"test_order_accuracy": torch.cat(ordered).double().mean().item()} if ordered else {})


def token_probabilities(trained: TrainedEncoder, batch: HiddenBatch) -> Tensor:
    """Probabilities of all pieces in the place of the K hidden ones, ``[K, pieces]``."""
    hidden, likelihood = len(batch.target), trained.model.likelihood
    return mean_prediction(trained, batch, lambda features: likelihood(features[..., :hidden, :]).logits.exp())


def order_probabilities(trained: TrainedEncoder, batch: PairBatch) -> Tensor:
    """Probabilities that the segments of a pair are in order, and that they are swapped, ``[B, 2]``."""
    hidden, logits = len(batch.target), trained.model.order_logits
    return mean_prediction(trained, batch, lambda features: logits(features[..., hidden:, :]).softmax(-1))


def key_masses(trained: TrainedEncoder) -> dict[str, Tensor]:
    """Return the mass of every key by attention site, ``[heads, test word pieces]``, at the mean of the attention.

    The mass is the sum of the weights that all queries give to the key.
    """
    masses_of: dict[str, list[Tensor]] = {}
    for batch in hidden_batches(trained):
        weights = sample_posterior(trained.guide, *batch, num_samples=1, noise="none")
        for site, sample in weights.items():
            masses_of.setdefault(site, []).append(masses_of_keys(sample[0], batch.mask, batch.mask))
    return {site: torch.cat(masses).transpose(0, 1) for site, masses in masses_of.items()}


# fine-tuning on SST-2


class LabeledBatch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class LabeledSentences(Sentences[LabeledBatch]):
    """Labeled sentences as word pieces, cut off at a length."""

    def __init__(self, text: LabeledPairs, vocabulary: Vocabulary, *, length: int) -> None:
        super().__init__(encode_sentences(text.first, vocabulary, length=length))
        self.labels = text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> LabeledBatch:
        _, indices = index
        return LabeledBatch(*padded([self.rows[number] for number in indices]), self.labels[list(indices)])


class ReviewTraining(OneCycleTraining):
    """Training of a :class:`TextClassifier`."""

    def observations(self, batch: LabeledBatch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: LabeledBatch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


def build_classifier(start: TrainedEncoder, *, scratch: bool) -> Trained[PretrainConfig, TextClassifier]:
    """Build a classifier that begins with the pretrained encoder, or with fresh weights.

    Its training has 32 bits, learning rate 0.001 and batches of 32 sentences, whatever the pretraining had.
    """
    config = replace(
        start.config, max_epochs=start.config.finetune_epochs, learning_rate=1e-3, batch_size=32, precision="32",
        devices=1, num_nodes=1, progress=False, resume=False,
    )  # fmt: skip
    scheme = config.build_scheme()

    def make(prior: PriorFactory) -> TextClassifier:
        return TextClassifier(text_encoder(config, start.vocabulary, prior), len(CLASSES), dropout=config.dropout)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    if not scratch:
        model.encoder.load_state_dict(start.model.encoder.state_dict())
    module = ReviewTraining(model, scheme.guide(model), scheme.objective(), learning_rate=config.learning_rate)
    return Trained(config, module.to(start.device))


def finetuned_accuracy(start: TrainedEncoder, folder: Path, *, scratch: bool) -> float:
    """Return the fraction of correct classes on the test sentences, at the epoch with the best validation accuracy."""
    trained, texts = build_classifier(start, scratch=scratch), load_sst2(data_root=start.config.data_root)
    config, size = trained.config, {"length": start.config.length}
    train, val, test = (LabeledSentences(texts[split], start.vocabulary, **size) for split in SPLITS)
    fit_batches(
        config, trained.module, train.loader(sentences=config.batch_size, seed=config.seed),
        val.loader(sentences=100, shuffle=False), folder=folder, patience=config.max_epochs,
        monitor={"val_accuracy": "max"},
    )  # fmt: skip
    right = 0
    for batch in test.batches(trained.device, sentences=100):
        probabilities = mean_prediction(trained, batch, lambda logits: logits.softmax(-1))
        right += int((probabilities.argmax(-1) == batch.labels).sum())
    return right / len(test)


# pretraining


class PretrainTask(Task[PretrainConfig, TrainedEncoder]):
    """Pretraining by the prediction of hidden word pieces of sentences."""

    config = PretrainConfig
    script = "experiments.pretrain"

    def folder(self, config: PretrainConfig) -> str:
        return f"pretrain/{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}"

    def main_metrics(self, config: PretrainConfig, metrics: Mapping[str, float]) -> Sequence[str]:  # noqa: ARG002
        return (
            "test_ppl",
            "test_accuracy",
            "test_order_accuracy",
            "sst2_accuracy",
            "scratch_accuracy",
            "explained_away",
        )

    def load(self, config: PretrainConfig) -> Texts:
        if config.finetune_epochs:
            load_sst2(data_root=config.data_root)
        return load_texts(config, limit=config.sentences)

    def run(self, config: PretrainConfig) -> dict[str, float]:
        with run_folder(self, config) as run:
            if run.metrics is not None:
                return run.metrics
            with user_errors(*BAD_INPUT):
                data = self.load(config)
                folder = run.begin()
                trained = self.build(config, folder)
            fitted = self.fit(trained, data, folder)
            return run.finish(self.evaluate(trained, fitted, folder) | fitted.metrics)

    def build(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        """Build the untrained network, and write its vocabulary into the folder."""
        # the vocabulary is made from all sentences, also where fewer are trained on
        vocabulary = run_vocabulary(
            folder,
            None,
            lambda: train_tokenizer(chain.from_iterable(load_texts(config)["train"]), size=config.vocabulary),
        )
        return build(config, vocabulary)

    def restore(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedEncoder, data: Texts, folder: Path) -> Fitted:
        config, vocabulary = trained.config, trained.vocabulary
        loaders = []
        for split in ("train", "val"):
            text = hidden_pieces(config, vocabulary, data[split], seed=config.seed)
            order = {"seed": config.seed} if split == "train" else {"shuffle": False}
            loaders.append(text.loader(sentences=config.batch_size, **order))
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.max_epochs)

    def evaluate(self, trained: TrainedEncoder, fitted: Fitted, folder: Path) -> dict[str, float]:
        """Compute the metrics of the trained network, with those of fine-tuning."""
        config, best = trained.config, fitted.history[fitted.best_epoch]
        metrics = token_scores(trained) | hybrid_metrics(trained.model) | save_masses(folder, key_masses(trained))
        metrics |= {
            "val_ppl": math.exp(best.get("val_token_loss", best["val_loss"])),
            "val_accuracy": best["val_accuracy"],
        }
        if config.finetune_epochs:
            for name, scratch in (("sst2", False), ("scratch", True)):
                checkpoints = folder / "checkpoints" / name
                metrics[f"{name}_accuracy"] = finetuned_accuracy(trained, checkpoints, scratch=scratch)
        return metrics

    def show(self, config: PretrainConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        show_normalizer(str(config.normalizer), folder)


def train(config: PretrainConfig) -> None:
    """Run the command."""
    task = PretrainTask()
    show_run(task, config, task.run(config))
