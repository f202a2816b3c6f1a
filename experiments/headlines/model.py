"""Texts with headlines as pairs of ids, and the network that writes headlines, with its guide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from experiments.datasets.text.batches import Batch, BucketSampler, EncodedText
from experiments.datasets.text.headlines import HeadlineText, lead, load_headlines
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import Vocabulary, train_tokenizer
from experiments.harness.training import OneCycleTraining, PriorFactory, Trained, resolve_device, seeded_build
from experiments.headlines.config import HeadlineConfig
from experiments.sequence.encoder import text_encoder
from experiments.sequence.model import model_arguments, run_vocabulary
from models.headlines import HeadlineWriter
from pyro_attention import AttentionGuide, FixedGammaPrior, Soft


def load_texts(config: HeadlineConfig) -> dict[str, HeadlineText]:
    """The splits, with as many texts as configured."""
    files = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
    found = load_headlines(data_root=config.data_root, files=files)
    counts = {"train": config.train_texts, "val": config.test_texts, "test": config.test_texts}
    return {split: data.kept([*range(len(data))][: counts[split]]) for split, data in found.items()}


def encoded(
    texts: Sequence[str], headlines: Sequence[str], vocabulary: Vocabulary, config: HeadlineConfig
) -> EncodedText:
    """Pairs of a text and a headline, cut off at the lengths that the network has room for."""
    pairs = EncodedText(ParallelText(list(texts), list(headlines), "headlines", ("text", "headline")), vocabulary)
    pairs.sources = [ids[: config.length] for ids in pairs.sources]
    pairs.targets = [ids[: config.headline_length - 1] for ids in pairs.targets]
    return pairs


def first_headlines(data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> EncodedText:
    """Every text with its first headline."""
    return encoded(data.texts, [headlines[0] for headlines in data.headlines], vocabulary, config)


class TrainingPairs(EncodedText):
    """Every text with each of its headlines, and behind these pairs every text with its first words."""

    def __init__(self, data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> None:
        self.counts = [len(headlines) for headlines in data.headlines]  # of every text
        texts = [text for text, count in zip(data.texts, self.counts, strict=True) for _ in range(count)]
        headlines = [headline for some in data.headlines for headline in some]
        leads = [lead(text, config.lead_words) for text in data.texts]
        pairs = encoded([*texts, *data.texts], [*headlines, *leads], vocabulary, config)
        self.sources, self.targets = pairs.sources, pairs.targets


class LeadSampler(BucketSampler):
    """Every text once an epoch: in the first epochs with its first words, then with one of its headlines.

    Which of several headlines is drawn anew in every epoch.
    """

    def __init__(self, data: TrainingPairs, *, lead_epochs: int, sentences: int, seed: int = 0) -> None:
        super().__init__(data.lengths, sentences=sentences, seed=seed)
        self.counts, self.lead_epochs = np.array(data.counts), lead_epochs

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch."""
        if epoch < self.lead_epochs:
            places = self.counts.sum() + np.arange(len(self.counts))
        else:
            # 1: other numbers than those of the order
            draws = np.random.default_rng([self.seed, epoch, 1]).integers(self.counts)
            places = np.cumsum(self.counts) - self.counts + draws
        chosen: list[int] = places.tolist()
        order = BucketSampler([self.lengths[place] for place in chosen], sentences=self.sentences, seed=self.seed)
        return [[chosen[place] for place in batch] for batch in order.batches(epoch)]


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
    guide = AttentionGuide(model, {"layers.*": scheme.family, "decoder.*": scheme.family if latent else Soft()})
    module = HeadlineTraining(model, guide, scheme.elbo, learning_rate=config.learning_rate)
    return TrainedWriter(config, module.to(resolve_device(config.device)), vocabulary)
