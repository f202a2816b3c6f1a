"""Vocabulary, encoder and guide of a pretraining run, how it is trained, and how well it predicts hidden pieces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.text.batches import batch_loader
from experiments.datasets.text.masked_text import EpochSampler, MaskedBatch, MaskedText, encode_sentences, load_english
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.training import (
    FITTED,
    Fitted,
    OneCycleTraining,
    Trained,
    hybrid_metrics,
    resolve_device,
    seeded_build,
)
from experiments.pretrain.config import PretrainConfig
from experiments.sequence.encoder import text_encoder
from experiments.sequence.model import run_vocabulary
from models.text import MaskedLanguageModel
from pyro_attention import Dense, Soft, predict, sample_posterior
from pyro_attention.analysis import explained_away

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
_HYBRID = "share of doubly normalised attention in this layer and head, at the best epoch"


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


def definitions(metrics: Mapping[str, float]) -> dict[str, str]:
    """What every metric means; ``hybrid_layers.L_H`` is that of layer L and head H."""
    return {name: _DEFINITIONS.get(name, _HYBRID) for name in metrics}


def evaluate(trained: TrainedEncoder, fitted: Fitted) -> dict[str, float]:
    """Metrics of a trained network."""
    best = fitted.history[fitted.best_epoch]
    mass = torch.cat(list(key_masses(trained).values())).flatten()
    rank = max(1, round(0.01 * mass.numel()))  # torch.quantile takes no more than 16 million numbers
    return (
        token_scores(trained)
        | hybrid_metrics(trained.model)
        | {
            "val_ppl": math.exp(best["val_loss"]),
            "val_accuracy": best["val_accuracy"],
            "explained_away": (mass < EPSILON).double().mean().item(),
            "key_mass_1_percent": mass.kthvalue(rank).values.item(),
        }
    )


def mean_probabilities(
    trained: Trained[Any, Any], batch: Iterable[Tensor], transform: Callable[[Tensor], Tensor]
) -> Tensor:
    """Mean of a network's transformed outputs for a batch over posterior samples; under soft attention its outputs."""
    soft = isinstance(trained.guide.family("layers.0"), Soft)
    return predict(
        trained.guide, *batch, num_samples=1 if soft else trained.config.num_samples,
        noise="none" if soft else "attention", seed=trained.config.seed, transform=transform,
    ).mean  # fmt: skip


def _test_batches(trained: TrainedEncoder) -> Iterator[MaskedBatch]:
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
    for batch in _test_batches(trained):
        probabilities = mean_probabilities(trained, batch, lambda features: likelihood(features).logits.exp())
        nll -= probabilities.gather(-1, batch.target[:, None]).double().log().sum().item()
        correct += int((probabilities.argmax(-1) == batch.target).sum())
        count += len(batch.target)
    return {"test_ppl": math.exp(nll / count), "test_accuracy": correct / count}


def key_masses(trained: TrainedEncoder) -> dict[str, Tensor]:
    """Sum of the weights of every key, by attention site: ``[heads, test word pieces]``, attention at its mean."""
    found: dict[str, list[Tensor]] = {}
    for batch in _test_batches(trained):
        weights = sample_posterior(trained.guide, *batch, num_samples=1, noise="none")
        layout = Dense((batch.mask[:, :, None] & batch.mask[:, None])[:, None])
        for site, sample in weights.items():
            mass = explained_away(sample[0], layout=layout).mass
            found.setdefault(site, []).append(mass.transpose(0, 1)[:, batch.mask].cpu())
    return {site: torch.cat(masses, 1) for site, masses in found.items()}
