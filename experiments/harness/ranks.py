"""The processes that share out a training, its ranks: the first one writes, prints and evaluates."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

Item = TypeVar("Item")


def is_first() -> bool:
    """Whether this process writes, prints and evaluates; Lightning knows it from the environment."""
    return getattr(rank_zero_only, "rank", 0) == 0  # an attribute that its type does not tell of


def count() -> int:
    """Number of processes that train together at this moment."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gathered(items: list[Item]) -> list[Item]:
    """The items of all ranks, in the order of the ranks; the same everywhere."""
    if count() == 1:
        return items
    parts: list[Any] = [None] * count()
    distributed.all_gather_object(parts, items)
    return [item for part in parts for item in part]


def mean_over_ranks(size: int, device: torch.device) -> float:
    """Mean of a number of observations over ranks; on one rank the number itself."""
    if count() == 1:
        return size
    total = torch.tensor(size, device=device, dtype=torch.float64)
    distributed.all_reduce(total)
    return total.item() / count()


def weight(size: int) -> int:
    """The weight of a logged mean over so many observations, for Lightning's mean over batches and ranks.

    The mean of the weights over ranks has to be a whole number: Lightning leaves off what is behind the point.
    """
    return size * count()
