"""KL weights as functions of the training step, for ``AttentionELBO(kl_weight=...)``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["Linear", "Sigmoid", "rising"]


class _Schedule:
    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "midpoint" and not 0 <= value < math.inf:
                raise ValueError(f"{name} is {value}, expected a finite number >= 0")
            if name == "warmup" and value == 0:
                raise ValueError(f"{name} is 0, expected a positive number")


@dataclass(frozen=True)
class Linear(_Schedule):
    """KL weight that rises linearly from 0 to ``weight`` in ``warmup`` steps, then stays constant.

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


def rising(shape: Literal["linear", "sigmoid"], steps: int, weight: float = 1.0) -> Linear | Sigmoid:
    """Let the KL weight rise from a small value to ``weight`` in so many steps.

    Args:
        shape: linear starts at 0; sigmoid starts at .7 % of the weight, and is at 99.3 % of it after the steps.
        steps: Number of training steps.
        weight: The weight at the end.

    Raises:
        ValueError: Another shape, no steps, or a weight that is negative or not finite.

    Example:
        >>> [round(rising("sigmoid", 100)(step), 3) for step in (0, 50, 100)]
        [0.007, 0.5, 0.993]

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.3: "we add a weight to the KL term and anneal it
    from a small value to one".
    """
    if not 0 < steps < math.inf:
        raise ValueError(f"steps is {steps}, expected a positive number of training steps, or a constant weight")
    if shape == "linear":
        return Linear(steps, weight)
    if shape == "sigmoid":
        return Sigmoid(10 / steps, steps / 2, weight)
    raise ValueError(f"shape is {shape!r}, expected linear or sigmoid")
