"""Check, by a few evaluations, that the loss of a batch is the sum over its items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro.poutine.scale_messenger import ScaleMessenger
from torch import Tensor

from pyro_attention._typing import Args, Message
from pyro_attention.posterior.passes import seeded

__all__ = ["check_sum"]

_SEEDS = 8  # of a loss that draws


def check_sum(loss: Callable[..., Tensor], batch: Args, *, one_item: bool, only: bool) -> None:
    r"""Raise ValueError where halves of a batch show that its loss is no sum, or where it should be one item.

    The loss of n items is L, that of its halves :math:`L_1, L_2`. A sum has :math:`L = L_1 + L_2`, a mean
    :math:`L = (n_1 L_1 + n_2 L_2) / n`, and so has a loss that plates scale to all of the data. Nothing is said where
    the batch has no halves, where the loss fits neither, or where its own noise hides the difference.

    Args:
        loss: The loss of a batch.
        batch: Its arguments.
        one_item: Whether the batch should be one item, whose halves add up to it by no more than chance.
        only: Whether this may be the only batch, which plates may scale to all of the data: itself.

    Example:
        >>> check_sum(lambda x: x.square().mean(), [torch.arange(4.0)], one_item=False, only=True)
        Traceback (most recent call last):
        ValueError: the loss of a batch of 4 items is the mean of the losses of its halves (3.5 for 0.5 and 6.5), ...
    """
    halves = _halves(loss, batch)
    if halves is None:
        return
    whole, first, second = halves.means
    if halves.is_mean and not (halves.scaled and only):
        how = "plates scale it to all of the data (size=)" if halves.scaled else "it is a mean over items"
        remedy = "let the plate have the size of the batch" if halves.scaled else "use reduction='sum', or times n"
        raise ValueError(
            f"the loss of a batch of {halves.items} items is the mean of the losses of its halves ({whole:.6g} "
            f"for {first:.6g} and {second:.6g}), so {how}, expected their sum, or widths would be wrong "
            f"by about the square root of a number of items; {remedy}"
        )
    if one_item and halves.is_sum:
        raise ValueError(
            f"a batch has {halves.items} items (its loss {whole:.6g} is the sum of those of its halves, "
            f"{first:.6g} and {second:.6g}), expected one item a batch for curvature='fisher', whose "
            f"squared gradients are those of single items; pass batches of one item, such as "
            f"zip(x.split(1), y.split(1)), or take curvature='hessian'"
        )


@dataclass(frozen=True)
class _Halves:
    """Losses of a batch, and of its halves, at several seeds.

    Attributes:
        items: Number of items.
        losses: Losses of the batch, its first half and the rest, float64 ``[3, seeds]``; one seed if nothing is drawn.
        scaled: Whether a Pyro site was scaled.
    """

    items: int
    losses: Tensor
    scaled: bool

    @property
    def means(self) -> tuple[float, float, float]:
        """Mean losses of the batch, its first half and the rest."""
        whole, first, second = self.losses.mean(1).tolist()
        return whole, first, second

    def distance(self, first_share: float, second_share: float) -> tuple[float, float]:
        """Return how far the loss is from this sum of those of its halves, and the standard error of that."""
        distances = self.losses[0] - first_share * self.losses[1] - second_share * self.losses[2]
        count = distances.numel()
        return abs(distances.mean().item()), distances.std().item() / math.sqrt(count) if count > 1 else 0.0

    @property
    def is_mean(self) -> bool:
        """Whether the loss is the mean of those of its halves, and clearly not their sum."""
        (_, first, second), share = self.means, self.items // 2 / self.items
        (from_sum, error), (from_mean, mean_error) = self.distance(1, 1), self.distance(share, 1 - share)
        # a sum with a constant that outweighs it is close to the mean as well, but not beside what the halves differ by
        close = from_mean <= 0.05 * abs(first - second) + 3 * mean_error
        return close and from_mean < 0.05 * from_sum and from_sum > 20 * error

    @property
    def is_sum(self) -> bool:
        """Whether the loss is the sum of those of its halves, up to a noise that is small beside it."""
        (_, first, second), (from_sum, error) = self.means, self.distance(1, 1)
        size = abs(first) + abs(second)
        return 3 * error < 0.01 * size and from_sum <= 1e-5 * size + 3 * error


def _halves(loss: Callable[..., Tensor], batch: Args) -> _Halves | None:
    """Evaluate the loss of a batch and of its halves; None where it has none, or a loss is no finite number."""
    items = _count(batch)
    if items is None or items < 2:
        return None
    first, rest = (_take(batch, items, part) for part in (slice(None, items // 2), slice(items // 2, None)))
    scales = _Scales()
    try:
        with torch.no_grad(), scales:
            draws = _value(loss, batch, 0) != _value(loss, batch, 1)
            # all of them with another noise, so that the errors of the three are independent
            losses = [
                [_value(loss, part, seed=3 * number + index) for number in range(_SEEDS if draws else 1)]
                for index, part in enumerate((batch, first, rest))
            ]
    except Exception:  # a loss need not take half a batch, such as half a graph; errors of the whole are raised later
        return None
    values = torch.tensor(losses, dtype=torch.float64)
    return _Halves(items, values, scales.any_scaled) if values.isfinite().all() else None


def _value(loss: Callable[..., Tensor], batch: Args, seed: int) -> float:
    """Return the loss of a batch, with the noise of a seed."""
    with seeded(seed):
        return loss(*batch).double().item()


def _count(value: object) -> int | None:
    """Return the size of the first dimension of the first tensor that has one, also in mappings and sequences."""
    if isinstance(value, Tensor):
        return len(value) if value.dim() else None
    if isinstance(value, Mapping):
        value = [*value.values()]
    if not isinstance(value, list | tuple):
        return None
    return next((count for count in map(_count, value) if count is not None), None)


def _take(value: Any, items: int, part: slice) -> Any:
    """Return the rows of this part in all tensors with a row for each item, and the rest as it is."""
    if isinstance(value, Tensor):
        return value[part] if value.dim() and len(value) == items else value
    if isinstance(value, Mapping):
        return {name: _take(entry, items, part) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_take(entry, items, part) for entry in value]
    return value


class _Scales(ScaleMessenger):
    """Handler that notes whether sites are scaled; for attention layers it neither draws nor records."""

    def __init__(self) -> None:
        super().__init__(scale=1.0)
        self.any_scaled = False

    def _process_message(self, msg: Message) -> None:
        super()._process_message(msg)
        self.any_scaled = self.any_scaled or bool((torch.as_tensor(msg["scale"]) != 1).any())
