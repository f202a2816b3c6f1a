"""Temperature scaling: one number, fitted on validation items, that makes probabilities more or less confident."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention._checks import check_positive
from pyro_attention.analysis.classification.inputs import check_labels, check_logits

__all__ = ["TemperatureScaling", "fit_temperature"]


@dataclass(frozen=True)
class TemperatureScaling:
    r"""Probabilities at a temperature, :math:`\frac1S \sum_s \mathrm{softmax}(\ell^{(s)} / T)`.

    Attributes:
        temperature: T > 0; above 1 makes the probabilities less confident.
        nll: NLL of the items it was fitted on, nats per item.
        nll_before: The same at T = 1.
        at_bound: T is an end of the range searched: the lower one when the top classes are all true (the best T is
            0), the upper one when uniform probabilities do better than any (the best T is infinite).

    Raises:
        ValueError: The temperature is not positive and finite.

    Example:
        >>> scaling = TemperatureScaling(temperature=2.0, nll=0.5, nll_before=0.6, at_bound=False)
        >>> scaling(torch.tensor([[2.0, 0.0]]))
        tensor([[0.7311, 0.2689]])
    """

    temperature: float
    nll: float
    nll_before: float
    at_bound: bool

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def __call__(self, logits: Tensor) -> Tensor:
        """Probabilities ``[items, classes]`` of logits ``[items, classes]`` or ``[S, items, classes]``."""
        return (check_logits(logits) / self.temperature).softmax(-1).mean(0)


def fit_temperature(
    logits: Tensor, labels: Tensor, *, bounds: tuple[float, float] = (0.01, 100.0)
) -> TemperatureScaling:
    r"""Fit T to validation items, :math:`\min_T -\sum_n \log \frac1S \sum_s \mathrm{softmax}(\ell_n^{(s)} / T)_{y_n}`.

    Without samples the NLL is convex in 1/T. With samples it is that of the averaged probabilities, which need not be
    convex; so both are searched on a grid of log T and then by golden sections, in float64. The result is never worse
    than T = 1, and is T = 1 where nothing else is better.

    Args:
        logits: ``[items, classes]``, or samples of them ``[S, items, classes]``.
        labels: int64 ``[items]``.
        bounds: Range of T; around 1.

    Raises:
        TypeError: Logits are no floats, or labels not int64.
        ValueError: Wrong shapes, labels out of range, logits that are not finite, or a range without 1.

    Example:
        >>> scaling = fit_temperature(torch.tensor([[2.0, 0.0]]).expand(4, 2), torch.tensor([0, 0, 0, 1]))
        >>> round(scaling.temperature, 3), round(2 / math.log(3), 3)
        (1.82, 1.82)
        >>> scaling(torch.tensor([[2.0, 0.0]]))
        tensor([[0.7500, 0.2500]])

    Source: Guo et al. (2017), On Calibration of Modern Neural Networks, section 4.2, for the case without samples.
    """
    samples = check_logits(logits)
    check_labels(labels, samples)
    low, high = bounds
    if not 0 < low <= 1 <= high < math.inf:
        raise ValueError(f"bounds is {bounds}, expected 0 < low <= 1 <= high, finite")

    def nll(log_temperature: float) -> float:
        temperature = math.exp(log_temperature)
        # sample by sample: only one of them is held in float64
        scores = [(sample.double() / temperature).log_softmax(-1).gather(-1, labels[:, None]) for sample in samples]
        return math.log(len(scores)) - torch.stack(scores).logsumexp(0).mean().item()

    ends = (math.log(low), math.log(high))
    grid = [*(ends[0] + (ends[1] - ends[0]) * step / 64 for step in range(64)), ends[1]]
    values = {x: nll(x) for x in (0.0, *grid)}
    best = grid.index(min(grid, key=values.__getitem__))
    inside = _golden_section(nll, grid[max(0, best - 1)], grid[min(64, best + 1)])
    values[inside] = nll(inside)
    # no change and the ends come first: of equal values, up to rounding, they say more
    candidates = [0.0, *ends, inside, *grid]
    least = min(values.values())
    chosen = next(x for x in candidates if values[x] <= least + 1e-13 * max(1.0, least))
    return TemperatureScaling(
        temperature={ends[0]: low, ends[1]: high}.get(chosen, math.exp(chosen)),
        nll=values[chosen],
        nll_before=values[0.0],
        at_bound=chosen in ends,
    )


def _golden_section(function: Callable[[float], float], low: float, high: float) -> float:
    """Minimum of a function that falls and then rises between two points, up to the rounding of its values."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-8:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2
