"""KL weights as functions of the training step, for ``AttentionELBO(kl_weight=...)``."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Constant", "Cyclical", "Linear", "Sigmoid"]


class _Schedule:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "midpoint" and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}, expected a finite number >= 0")
            if name in ("warmup", "period", "rise") and value == 0:
                raise ValueError(f"{name} is 0, expected a positive number")


@dataclass(frozen=True)
class Constant(_Schedule):
    """The same weight at every step.

    Example:
        >>> Constant(0.1)(1000)
        0.1
    """

    weight: float = 1.0

    def __call__(self, step: int) -> float:  # noqa: ARG002
        return self.weight


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


@dataclass(frozen=True)
class Cyclical(_Schedule):
    """In every ``period`` of steps, rise linearly from 0 to ``weight`` over its first fraction ``rise``, then stay.

    Example:
        >>> [Cyclical(period=10)(step) for step in (0, 5, 9, 10)]
        [0.0, 1.0, 1.0, 0.0]

    Source: Fu et al. (2019), Cyclical annealing schedule.
    """

    period: int
    rise: float = 0.5
    weight: float = 1.0

    def __call__(self, step: int) -> float:
        return self.weight * min(1.0, step % self.period / (self.rise * self.period))
