"""Labelled sentences to fine-tune on, as batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.batches import batch_loader, padded
from experiments.datasets.text.masked_text import EpochSampler, encode_sentences
from experiments.datasets.text.sst2 import LabelledText
from experiments.datasets.text.vocabulary import Vocabulary

__all__ = ["LabelledBatch", "LabelledSentences"]


class LabelledBatch(NamedTuple):
    """Arguments of a :class:`TextClassifier`."""

    tokens: Tensor
    mask: Tensor
    labels: Tensor


class LabelledSentences(Dataset[LabelledBatch]):
    """Labelled sentences; indexed by an epoch, which does not matter, and a list of places.

    Args:
        text: The sentences with their labels.
        vocabulary: Makes word pieces of them.
        length: Most pieces of a sentence; the rest is cut off.
    """

    def __init__(self, text: LabelledText, vocabulary: Vocabulary, *, length: int) -> None:
        self.rows, self.labels = encode_sentences(text.sentences, vocabulary, length=length), text.labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> LabelledBatch:
        _, places = index
        return LabelledBatch(*padded([self.rows[place] for place in places]), self.labels[list(places)])

    def loader(self, **options: Any) -> DataLoader[LabelledBatch]:
        """Batches of similar lengths; options as of :class:`EpochSampler`."""
        return batch_loader(self, EpochSampler(self.rows, **options))

    def batches(self, device: torch.device) -> Iterator[LabelledBatch]:
        """All sentences in order of their lengths, on a device."""
        for batch in self.loader(sentences=100, shuffle=False):
            yield LabelledBatch(*(tensor.to(device) for tensor in batch))
