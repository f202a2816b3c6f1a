"""The processes that train one network together, its ranks: the first one writes, prints and evaluates."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch.utilities import rank_zero_only
from torch import distributed

Item = TypeVar("Item")


def is_first() -> bool:
    """Whether this process writes, prints and evaluates; Lightning knows it from the environment."""
    return getattr(rank_zero_only, "rank", 0) == 0  # an attribute that its type does not tell of


def gathered(items: list[Item]) -> list[Item]:
    """The items of all ranks, in the order of the ranks; the same everywhere."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return items
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, items)
    return [item for part in parts for item in part]
