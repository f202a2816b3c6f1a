"""Sentences as tokens of a pretrained model, in batches of similar lengths; noise in the labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.glue import LabelledPairs
from experiments.datasets.text.masked_text import EpochSampler

__all__ = ["EncodedPairs", "PairBatch", "noisy_labels", "share_of"]

_POOL = 10  # batches whose examples are sorted by length together: some padding, but batches of many lengths


class PairBatch(NamedTuple):
    """Arguments of a :class:`PairModel`.

    Attributes:
        inputs: What the tokenizer made, ``[B, N]`` each, by the names of the network's arguments.
        labels: Classes or grades ``[B]``.
    """

    inputs: dict[str, Tensor]
    labels: Tensor


class EncodedPairs(Dataset[PairBatch]):
    """Examples as tokens; indexed by an epoch, which does not matter, and a list of places.

    Args:
        text: The examples.
        tokenizer: Of the pretrained model.
        length: Most tokens of an example.
    """

    def __init__(self, text: LabelledPairs, tokenizer: Any, *, length: int) -> None:
        encoded = tokenizer(text.first, text.second, truncation=True, max_length=length, padding=False)
        names = [name for name in tokenizer.model_input_names if name in encoded]
        self.rows = [{name: torch.tensor(encoded[name][place]) for name in names} for place in range(len(text))]
        self.labels = text.labels
        self._padding = {name: 0 for name in names} | {"input_ids": tokenizer.pad_token_id}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> PairBatch:
        _, places = index
        inputs = {
            name: pad_sequence([self.rows[place][name] for place in places], batch_first=True, padding_value=value)
            for name, value in self._padding.items()
        }
        return PairBatch(inputs, self.labels[list(places)])

    @property
    def lengths(self) -> list[int]:
        """Tokens of every example."""
        return [len(row["input_ids"]) for row in self.rows]

    def loader(self, **options: Any) -> DataLoader[PairBatch]:
        """Batches of similar lengths; options as of :class:`EpochSampler`."""
        sampler = EpochSampler([row["input_ids"] for row in self.rows], pool=_POOL, **options)
        return DataLoader(self, sampler=sampler, batch_size=None)

    def batches(self, device: torch.device, *, sentences: int) -> Iterator[tuple[list[int], PairBatch]]:
        """All examples in order of their lengths, on a device, with their places."""
        sampler = EpochSampler([row["input_ids"] for row in self.rows], sentences=sentences, shuffle=False)
        for index in sampler:
            inputs, labels = self[index]
            yield index[1], PairBatch({name: ids.to(device) for name, ids in inputs.items()}, labels.to(device))


def share_of(items: int, share: float, *, seed: int) -> Tensor:
    """Places of a share of the items, two at least, drawn by a seed; a larger share holds a smaller one."""
    order = torch.randperm(items, generator=torch.Generator().manual_seed(seed))
    return order[: max(2, round(share * items))].sort().values


def noisy_labels(labels: Tensor, share: float, *, classes: int, seed: int) -> Tensor:
    """Labels of which a share is replaced: a class by one of the others, a grade by that of a random example.

    Args:
        labels: ``[N]``.
        share: Share to replace; those of a larger share hold those of a smaller one.
        classes: Number of classes; 0 for grades.
        seed: Seed of the choice.

    Example:
        >>> noisy_labels(torch.tensor([0, 1, 1, 0]), 0.5, classes=2, seed=0).ne(torch.tensor([0, 1, 1, 0])).sum().item()
        2
    """
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    noisy = labels.clone()
    if classes:
        noisy[places] = (labels[places] + torch.randint(1, classes, places.shape, generator=generator)) % classes
    else:
        noisy[places] = labels[torch.randint(len(labels), places.shape, generator=generator)]
    return noisy
