"""Texts with headlines of a run, as pairs of ids; training begins with the first words of the texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.datasets.text.batches import BucketSampler, EncodedText
from experiments.datasets.text.headlines import HeadlineText, lead, load_headlines
from experiments.datasets.text.parallel_text import ParallelText
from experiments.datasets.text.vocabulary import Vocabulary
from experiments.headlines.config import HeadlineConfig

__all__ = ["LeadSampler", "TrainingPairs", "encoded", "first_headlines", "load_texts"]


def load_texts(config: HeadlineConfig) -> dict[str, HeadlineText]:
    """The splits, with as many texts as configured.

    Raises:
        FileNotFoundError, ValueError: As of :func:`load_headlines`.
    """
    files = {"train": config.train_file, "val": config.val_file, "test": config.test_file}
    found = load_headlines(data_root=config.data_root, files=files)
    kept = {"train": config.train_texts, "val": config.test_texts, "test": config.test_texts}
    return {split: data.kept([*range(len(data))][: kept[split]]) for split, data in found.items()}


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
    """Every text with each of its headlines, and behind these pairs every text with its first words.

    Attributes:
        counts: Number of headlines of every text.
    """

    def __init__(self, data: HeadlineText, vocabulary: Vocabulary, config: HeadlineConfig) -> None:
        self.counts = [len(headlines) for headlines in data.headlines]
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
        """Return the batches of an epoch, of all processes together."""
        if epoch < self.lead_epochs:
            places = self.counts.sum() + np.arange(len(self.counts))
        else:
            # 1: other numbers than those of the order
            draws = np.random.default_rng([self.seed, epoch, 1]).integers(self.counts)
            places = np.cumsum(self.counts) - self.counts + draws
        chosen: list[int] = places.tolist()
        order = BucketSampler([self.lengths[place] for place in chosen], sentences=self.sentences, seed=self.seed)
        return [[chosen[place] for place in batch] for batch in order.batches(epoch)]
