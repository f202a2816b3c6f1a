"""What LogNormal and Gaussian weights share: a value that is normally distributed."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_attention.families.distribution import ContinuousWeights

__all__ = ["NormalValue"]


class NormalValue(ContinuousWeights):
    r"""A distribution whose value has independent entries :math:`\mathrm{Normal}(m, s)`.

    Args:
        loc: ``m``, broadcastable to batch + event.
        scale: ``s > 0``, broadcastable to batch + event.
        options: What the base takes besides.

    Raises:
        ValueError: The scale is not positive, a parameter is not finite, or there are too few dimensions.
    """

    positive: ClassVar[tuple[str, ...]] = ("scale",)
    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor, **options: Any) -> None:
        super().__init__(loc=loc, scale=scale, **options)

    def draw(self, shape: torch.Size) -> Tensor:
        return torch.addcmul(self.loc, torch.randn(shape, dtype=self.loc.dtype, device=self.loc.device), self.scale)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    @property
    def entropy_per_weight(self) -> Tensor:
        return 0.5 * math.log(2 * math.pi * math.e) + self.scale.log()

    def log_density(self, value: Tensor) -> Tensor:
        standard = (value - self.loc) / self.scale
        return -0.5 * standard.square() - self.scale.log() - 0.5 * math.log(2 * math.pi)
