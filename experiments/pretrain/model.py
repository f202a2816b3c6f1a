"""Vocabulary, encoder and guide of a pretraining run, and how text models are trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from experiments.datasets.text.masked_text import MaskedBatch, load_english
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.training import OneCycleTraining, Trained, resolve_device, seeded_build
from experiments.pretrain.config import PretrainConfig
from experiments.sequence.encoder import text_encoder
from experiments.sequence.model import run_vocabulary
from models.text import MaskedLanguageModel
from pyro_attention import predict

__all__ = ["MaskedTraining", "TrainedEncoder", "build", "load_vocabulary"]


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
