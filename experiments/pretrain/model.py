"""Vocabulary, encoder and guide of a pretraining run, and how text models are trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.datasets.text.masked_text import MaskedBatch, load_english
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.files import UserError, user_errors
from experiments.harness.folder import saved_config
from experiments.harness.training import ELBOTraining, PriorFactory, Trained, load_best, resolve_device, seeded_build
from experiments.pretrain.config import PretrainConfig
from experiments.sequence.model import run_vocabulary
from models.text import MaskedLanguageModel, TextEncoder
from pyro_attention import NORMALIZERS, Hybrid, Normalizer, predict

__all__ = [
    "MaskedTraining",
    "TextTraining",
    "TrainedEncoder",
    "build",
    "build_encoder",
    "load_trained",
    "load_vocabulary",
]


class TextTraining(ELBOTraining):
    """Trains a text model with a learning rate that rises and falls."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.learning_rate, total_steps=int(self.trainer.estimated_stepping_batches),
            pct_start=0.1, anneal_strategy="linear", cycle_momentum=False,
        )  # fmt: skip
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class MaskedTraining(TextTraining):
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


def build_encoder(config: PretrainConfig, vocabulary: Vocabulary, prior: PriorFactory) -> TextEncoder:
    """An untrained encoder."""

    def normalizer(heads: int) -> Normalizer:
        hybrid = config.normalizer == "hybrid"
        return Hybrid(heads, initial=config.hybrid_share) if hybrid else NORMALIZERS[config.normalizer]()

    sizes = {name: getattr(config, name) for name in ("width", "heads", "layers", "dropout")}
    return TextEncoder(len(vocabulary), **sizes, positions=config.length, prior=prior, normalizer=normalizer)


def build(config: PretrainConfig, vocabulary: Vocabulary) -> TrainedEncoder:
    """Network and guide, untrained."""
    scheme = config.build_scheme()
    model = seeded_build(
        lambda prior: MaskedLanguageModel(build_encoder(config, vocabulary, prior)), scheme.prior, seed=config.seed
    )
    module = MaskedTraining(model, scheme.guide(model), scheme.elbo, learning_rate=config.learning_rate)
    return TrainedEncoder(config, module.to(resolve_device(config.device)), vocabulary)


def load_trained(folder: Path, *, device: str = "auto") -> TrainedEncoder:
    """The network of a finished pretraining run, at its best epoch.

    Raises:
        UserError: The folder holds no such run, or one of another network.
    """
    for name in ("config.yaml", "vocabulary.json", "checkpoints/best.ckpt"):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder} holds no finished run ({name} is missing); pretrain first: python -m experiments.pretrain "
                f"--out {folder}"
            )
    with user_errors(ValueError, OSError, TypeError):
        config = saved_config(folder, PretrainConfig, script="experiments.pretrain", device=device)
        trained = build(config, Vocabulary.load(folder / "vocabulary.json"))
        load_best(trained.module, folder)
    return trained
