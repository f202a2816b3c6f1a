"""The processes that share out a training, its ranks: which one this is, and what it has to do with the others.

The first rank opens the folder, writes, prints and evaluates. The others wait until it has prepared everything, train
with it, and end where the training ends.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

import torch
from torch import distributed

__all__ = [
    "begin_together", "count", "end_others", "gathered", "is_first", "mean_over_ranks", "rank", "wait_for_first",
    "weight",
]  # fmt: skip

Item = TypeVar("Item")


class _Others:
    """What the first rank has to know of the others."""

    waiting = False


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """Number of this process; 0 of the first one, and of one that is alone."""
    return distributed.get_rank() if _several() else 0


def count() -> int:
    """Number of processes."""
    return distributed.get_world_size() if _several() else 1


def is_first() -> bool:
    """Whether this process writes, prints and evaluates."""
    return rank() == 0


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


def wait_for_first() -> bool:
    """Called by every rank at the beginning: the others wait, and learn whether there is anything to train."""
    if is_first():
        _Others.waiting = True
        return True
    told: list[Any] = [None]
    distributed.broadcast_object_list(told)
    return bool(told[0])


def begin_together(*, training: bool = True) -> None:
    """Called by the first rank: the others may come, as everything that they read is there, or they are not needed."""
    if _Others.waiting:
        _Others.waiting = False
        distributed.broadcast_object_list([training])


def end_others() -> None:
    """The end of a training: the first rank goes on alone, the other processes end here."""
    if count() == 1:
        return
    first = is_first()
    distributed.barrier()
    distributed.destroy_process_group()
    if not first:
        sys.exit()
