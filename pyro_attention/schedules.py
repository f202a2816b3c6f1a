"""KL weights as functions of the training step, for ``AttentionELBO(kl_weight=...)``."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Linear", "Sigmoid"]


class _Schedule:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "midpoint" and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}, expected a finite number >= 0")
            if name == "warmup" and value == 0:
                raise ValueError(f"{name} is 0, expected a positive number")


@dataclass(frozen=True)
class Linear(_Schedule):
    """From 0 to ``weight`` in ``warmup`` steps, then constant.

    Example:
        >>> [Linear(warmup=10)(step) for step in (0, 5, 20)]
        [0.0, 0.5, 1.0]
    """

    warmup: int
    weight: float = 1.0

    def __call__(self, step: int) -> float:
        return self.weight * min(1.0, step / self.warmup)


@dataclass(frozen=True)
class Sigmoid(_Schedule):
    """``weight * sigmoid(rate * (step - midpoint))``; midpoint 0 and rate 1 are the released graph code's choice.

    Example:
        >>> [round(Sigmoid()(step), 3) for step in (0, 2, 1000)]
        [0.5, 0.881, 1.0]

    Source: Fan et al. (2020), Bayesian Attention Modules; there exp(x)/(1+exp(x)), which overflows at x = 89.
    """

    rate: float = 1.0
    midpoint: float = 0.0
    weight: float = 1.0

    def __call__(self, step: int) -> float:
        return self.weight * 0.5 * (1 + math.tanh(self.rate * (step - self.midpoint) / 2))
