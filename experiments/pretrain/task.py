"""Pretraining of a small Transformer as a masked language model, its fine-tuning on SST-2, and their table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.data.places import SPLITS, read_arrays
from experiments.data.text.batches import Sentences, Vocabulary, padded, train_tokenizer
from experiments.data.text.glue import CLASSES, LabeledPairs, load_sst2
from experiments.data.text.masked_text import MaskedBatch, MaskedText, encode_sentences, load_english
from experiments.files import read_text, user_errors, write_atomic
from experiments.pretrain.config import PretrainConfig
from experiments.pretrain.pictures import hybrid_figure, hybrid_shares, mass_counts, mass_figure
from experiments.report.figures import save
from experiments.run import BAD_INPUT, Task, run_folder, show_run
from experiments.sequence.model import TrainedText, run_vocabulary, text_encoder
from experiments.training import (
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
from models.text import MaskedLanguageModel, TextClassifier
from pyro_attention import Dense, predict, sample_posterior
from pyro_attention.analysis import key_mass

EPSILON = 1e-8  # a key whose weights from all queries sum to less is explained away


class MaskedTraining(OneCycleTraining):
    """Trains a :class:`MaskedLanguageModel`."""

    def observations(self, batch: MaskedBatch) -> int:
        return len(batch.target)

    def evaluate(self, batch: MaskedBatch) -> dict[str, Tensor]:
        model, guide = self.objective.model, self.objective.guide
        logits = model.likelihood(predict(guide, *batch, num_samples=1, noise="none").mean).logits
        loss = torch.nn.functional.nll_loss(logits, batch.target)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.target).float().mean()}


TrainedEncoder = TrainedText[PretrainConfig, MaskedLanguageModel]


def build(config: PretrainConfig, vocabulary: Vocabulary) -> TrainedEncoder:
    """Network and guide, untrained."""
    scheme = config.build_scheme()
    model = seeded_build(
        lambda prior: MaskedLanguageModel(text_encoder(config, vocabulary, prior)), scheme.prior, seed=config.seed
    )
    module = MaskedTraining(model, scheme.guide(model), scheme.objective(), learning_rate=config.learning_rate)
    return TrainedEncoder(config, module.to(resolve_device(config.device)), vocabulary)


# how well it predicts


def hidden_batches(trained: TrainedEncoder) -> Iterator[MaskedBatch]:
    """The test sentences; what is hidden in them is the same for all runs with one vocabulary."""
    config, size = trained.config, len(trained.vocabulary)
    sentences = load_english(config.dataset, data_root=config.data_root)["test"]
    rows = encode_sentences(sentences, trained.vocabulary, length=config.length)
    data = MaskedText(rows, vocabulary_size=size, share=config.masked)
    return data.batches(trained.device, sentences=100)


def token_scores(trained: TrainedEncoder) -> dict[str, float]:
    """Perplexity and accuracy on the hidden test word pieces."""
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


class LabeledBatch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class LabeledSentences(Sentences[LabeledBatch]):
    """Labeled sentences as word pieces, of a length at most."""

    def __init__(self, text: LabeledPairs, vocabulary: Vocabulary, *, length: int) -> None:
        super().__init__(encode_sentences(text.first, vocabulary, length=length))
        self.labels = text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> LabeledBatch:
        _, places = index
        return LabeledBatch(*padded([self.rows[place] for place in places]), self.labels[list(places)])


class ReviewTraining(OneCycleTraining):
    def observations(self, batch: LabeledBatch) -> int:
        return len(batch.labels)

    def evaluate(self, batch: LabeledBatch) -> dict[str, Tensor]:
        logits = predict(self.objective.guide, *batch, num_samples=1, noise="none").mean
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch.labels).float().mean()}


def build_classifier(start: TrainedEncoder, *, scratch: bool) -> Trained[PretrainConfig, TextClassifier]:
    """A classifier that begins with the pretrained encoder, or with fresh weights.

    It is trained in 32 bits, with the learning rate, batches and clipping of every task.
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
    """Fraction of correct classes on the test sentences, at the epoch that is best on the validation sentences."""
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


Texts = Mapping[str, Sequence[str]]  # sentences by split


class PretrainTask(Task[PretrainConfig, TrainedEncoder]):
    """Hidden word pieces of sentences."""

    config = PretrainConfig
    script = "experiments.pretrain"

    def folder(self, config: PretrainConfig) -> str:
        return f"pretrain/{config.dataset}-{config.normalizer}-{config.guide}-{config.seed}"

    def load(self, config: PretrainConfig) -> Texts:
        if config.finetune_epochs:
            load_sst2(data_root=config.data_root)
        return load_english(config.dataset, limit=config.sentences, data_root=config.data_root)

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
        """Build the untrained network, and put its vocabulary into the folder."""
        # of all sentences, also where fewer are trained on
        texts = partial(load_english, config.dataset, data_root=config.data_root)
        vocabulary = run_vocabulary(folder, None, lambda: train_tokenizer(texts()["train"], size=config.vocabulary))
        return build(config, vocabulary)

    def restore(self, config: PretrainConfig, folder: Path) -> TrainedEncoder:
        return build(config, Vocabulary.load(folder / "vocabulary.json"))

    def fit(self, trained: TrainedEncoder, data: Texts, folder: Path) -> Fitted:
        config, vocabulary = trained.config, trained.vocabulary
        loaders = []
        for split in ("train", "val"):
            rows = encode_sentences(data[split], vocabulary, length=config.length)
            text = MaskedText(rows, vocabulary_size=len(vocabulary), share=config.masked, seed=config.seed)
            order = {"seed": config.seed} if split == "train" else {"shuffle": False}
            loaders.append(text.loader(sentences=config.batch_size, **order))
        return fit_batches(config, trained.module, *loaders, folder=folder, patience=config.max_epochs)

    def evaluate(self, trained: TrainedEncoder, fitted: Fitted, folder: Path) -> dict[str, float]:
        """Compute the metrics of the trained network, after fine-tuning too."""
        config, best = trained.config, fitted.history[fitted.best_epoch]
        masses = key_masses(trained)
        counts: dict[str, Any] = {site: mass_counts([found.numpy()]) for site, found in masses.items()}
        write_atomic(folder / "key_mass.npz", lambda file: np.savez_compressed(file, **counts))
        mass = torch.cat(list(masses.values())).flatten()
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
                place = folder / "checkpoints" / name
                metrics[f"{name}_accuracy"] = finetuned_accuracy(trained, place, scratch=scratch)
        return metrics

    def show(self, config: PretrainConfig, metrics: Mapping[str, float], folder: Path) -> None:
        super().show(config, metrics, folder)
        print(save(mass_figure({str(config.normalizer): key_counts(folder)}), folder / "figures" / "key_mass.png"))
        if config.normalizer == "hybrid":
            print(save(hybrid_figure(hybrid_shares(read_history(folder))), folder / "figures" / "hybrid.png"))


def train(config: PretrainConfig) -> None:
    """Run the command."""
    task = PretrainTask()
    show_run(task, config, task.run(config))


def key_counts(folder: Path) -> Any:
    """Keys of all sites of a finished run, by the bins of their mass."""
    return sum(read_arrays(folder / "key_mass.npz", "train again with --overwrite").values())


def read_history(folder: Path) -> list[dict[str, float]]:
    """Metrics of every epoch of a finished run."""
    text = read_text(folder / "history.csv", "train again with --overwrite")
    return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(text.splitlines())]
