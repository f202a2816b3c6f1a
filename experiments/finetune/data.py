"""Texts as tokens of a pretrained model, in batches of similar lengths; the examples of GLUE, noise in their labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from experiments.datasets.text.glue import GLUE, LabelledPairs, load_glue
from experiments.datasets.text.masked_text import EpochSampler
from experiments.files import UserError
from experiments.finetune.config import GlueConfig

__all__ = ["EncodedPairs", "EncodedTexts", "PairBatch", "load_texts", "noisy_labels", "share_of"]

Batch = TypeVar("Batch")
_POOL = 10  # batches whose examples are sorted by length together: some padding, but batches of many lengths


class PairBatch(NamedTuple):
    """Arguments of a :class:`PairModel`.

    Attributes:
        inputs: What the tokenizer made, ``[B, N]`` each, by the names of the network's arguments.
        labels: Classes or grades ``[B]``.
    """

    inputs: dict[str, Tensor]
    labels: Tensor


class EncodedTexts(Dataset[Batch], Generic[Batch]):
    """Texts as tokens; indexed by an epoch, which does not matter, and a list of places.

    Args:
        rows: What the tokenizer made of each text, by the names of the network's arguments.
        tokenizer: Of the pretrained model.
    """

    def __init__(self, rows: Sequence[Mapping[str, Tensor]], tokenizer: Any) -> None:
        self.rows = rows
        self._padding = {name: 0 for name in rows[0]} | {"input_ids": tokenizer.pad_token_id}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """Tokens of every text."""
        return [len(row["input_ids"]) for row in self.rows]

    def padded(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Arguments of the network ``[B, N]`` for the texts at these places."""
        return {
            name: pad_sequence([self.rows[place][name] for place in places], batch_first=True, padding_value=value)
            for name, value in self._padding.items()
        }

    def loader(self, **options: Any) -> DataLoader[Batch]:
        """Batches of similar lengths; options as of :class:`EpochSampler`."""
        return DataLoader(self, sampler=self._sampler(pool=_POOL, **options), batch_size=None)

    def batches(self, device: torch.device, *, sentences: int) -> Iterator[tuple[Sequence[int], Batch]]:
        """All texts in order of their lengths, on a device, with their places."""
        for index in self._sampler(sentences=sentences, shuffle=False):
            yield index[1], move_data_to_device(self[index], device)

    def _sampler(self, **options: Any) -> EpochSampler:
        return EpochSampler([row["input_ids"] for row in self.rows], **options)


class EncodedPairs(EncodedTexts[PairBatch]):
    """Examples of GLUE as tokens.

    Args:
        text: The examples.
        tokenizer: Of the pretrained model.
        length: Most tokens of an example.
    """

    def __init__(self, text: LabelledPairs, tokenizer: Any, *, length: int) -> None:
        encoded = tokenizer(text.first, text.second, truncation=True, max_length=length, padding=False)
        names = [name for name in tokenizer.model_input_names if name in encoded]
        rows = [{name: torch.tensor(encoded[name][place]) for name in names} for place in range(len(text))]
        super().__init__(rows, tokenizer)
        self.labels = text.labels

    def __getitem__(self, index: tuple[int, Sequence[int]]) -> PairBatch:
        _, places = index
        return PairBatch(self.padded(places), self.labels[list(places)])


def load_texts(config: GlueConfig) -> dict[str, LabelledPairs]:
    """The parts of a task, and those of the tasks out of domain by their names.

    Of the training part it is the share that is asked for, with noise in its labels if there is to be any. Of a task
    out of domain it is the test part: of pairs only the first sentences where the task has none, and no labels.

    Raises:
        UserError: The task has grades, or pairs where another one has none.
        ValueError, FileNotFoundError: As :func:`load_glue`.
    """
    own, parts = GLUE[config.task], load_glue(config.task, data_root=config.data_root)
    if config.out_of_domain and own.regression:
        raise UserError(f"out_of_domain is set for {config.task}, expected a task with classes")
    train, pairs = parts["train"], own.layout.second is not None
    if config.train_share < 1:
        train = train.select(share_of(len(train), config.train_share, seed=config.seed))
    labels = noisy_labels(train.labels, config.label_noise, classes=len(own.classes), seed=config.seed)
    parts["train"] = LabelledPairs(train.first, train.second, labels)
    for name in config.out_of_domain:
        if name == config.task:
            raise UserError(f"out_of_domain is {name}, expected other tasks than the one that is trained on")
        text = load_glue(name, data_root=config.data_root)["test"]
        if pairs and text.second is None:
            raise UserError(f"out_of_domain is {name}, which has no pairs of sentences as {config.task} has")
        parts[name] = LabelledPairs(text.first, text.second if pairs else None, torch.zeros_like(text.labels).long())
    return parts


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
