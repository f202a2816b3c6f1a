"""Vocabulary, network and guide of a run on headlines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from experiments.datasets.text.batches import Batch
from experiments.datasets.text.headlines import HeadlineText
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.training import OneCycleTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.headlines.config import HeadlineConfig
from experiments.sequence.encoder import text_encoder
from experiments.sequence.model import model_arguments, run_vocabulary
from models.headlines import HeadlineWriter
from pyro_attention import AttentionGuide, FixedGammaPrior, Soft

__all__ = ["HeadlineTraining", "TrainedWriter", "build", "load_vocabulary", "target_log_probs"]


def target_log_probs(model: HeadlineWriter, batch: Batch) -> Tensor:
    """Log probabilities of all word pieces of a batch, the attention at its posterior mean."""
    memory = model.encoder(batch.source, batch.source_mask)
    features = model.decode(memory, batch.source_mask, batch.target_in, batch.target_mask)
    return model.likelihood(features[batch.target_mask]).log_prob(batch.target_out[batch.target_mask])


class HeadlineTraining(OneCycleTraining):
    """Trains a :class:`HeadlineWriter`."""

    def arguments(self, batch: Batch) -> Sequence[Tensor]:
        return model_arguments(batch)

    def observations(self, batch: Batch) -> int:
        return int(batch.target_mask.sum())

    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": -target_log_probs(self.objective.model, batch).mean()}


@dataclass(frozen=True)
class TrainedWriter(Trained[HeadlineConfig, HeadlineWriter]):
    """A network that writes headlines, with its guide and its word pieces."""

    vocabulary: Vocabulary

    @property
    def is_random(self) -> bool:
        """Whether its attention is random."""
        return not isinstance(self.guide.family("layers.0"), Soft)


def load_vocabulary(config: HeadlineConfig, folder: Path, data: HeadlineText) -> Vocabulary:
    """The vocabulary in the folder; else a new one, which is then put there."""
    texts = [*data.texts, *(headline for headlines in data.headlines for headline in headlines)]
    return run_vocabulary(folder, None, lambda: train_tokenizer(texts, size=config.vocabulary))


def build(config: HeadlineConfig, vocabulary: Vocabulary) -> TrainedWriter:
    """Network and guide, untrained."""
    scheme, latent = config.build_scheme(), config.decoder == "latent"
    sizes = {"layers": config.layers, "positions": config.headline_length, "dropout": config.dropout}

    def make(prior: PriorFactory) -> HeadlineWriter:
        # a contextual prior of soft attention would have parameters that nothing trains
        decoder: PriorFactory = prior if latent else lambda *_: FixedGammaPrior()
        return HeadlineWriter(text_encoder(config, vocabulary, prior), **sizes, prior=decoder)

    model = seeded_build(make, scheme.prior, seed=config.seed)
    families = {"layers.*": scheme.family, "decoder.*": scheme.family if latent else Soft()}
    guide = AttentionGuide(model, families)
    module = HeadlineTraining(model, guide, scheme.elbo, learning_rate=config.learning_rate)
    return TrainedWriter(config, module.to(resolve_device(config.device)), vocabulary)
