"""Monte Carlo predictions, whose variance splits into its sources."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_attention._checks import as_float
from pyro_attention.guide import AttentionGuide
from pyro_attention.posterior.chunks import outputs
from pyro_attention.posterior.sampling import Noise, Run, passes, sample_posterior, seeded

__all__ = [
    "Moments",
    "Noise",
    "OrderStatistics",
    "Prediction",
    "predict",
    "sample_posterior",
    "seeded",
]


class Moments:
    """Number, mean and variance of a stream, which need no memory for the samples."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, torch.zeros(()), torch.zeros(())

    def update(self, chunk: Tensor) -> None:
        """Count samples ``[S, ...]``, by Chan's update of mean and sum of squared deviations."""
        chunk = as_float(chunk)  # in half precision the sums would stop to grow
        size, mean = len(chunk), chunk.mean(0)
        shift, total = mean - self.mean, self.count + size
        self._squares = self._squares + (chunk - mean).square().sum(0) + shift.square() * (self.count * size / total)
        self.mean, self.count = self.mean + shift * (size / total), total

    @property
    def variance(self) -> Tensor:
        """Unbiased variance; zero for a single sample."""
        return self._squares / max(1, self.count - 1)


class OrderStatistics:
    """Exact quantile ``q`` of a stream of known length: keeps only the samples beyond it, on its shorter side."""

    def __init__(self, q: float, num_samples: int) -> None:
        if not 0 <= q <= 1:
            raise ValueError(f"quantile {q} lies outside [0, 1]")
        self._largest = q > 0.5
        # position counted from the kept end
        self._position = (1 - q if self._largest else q) * (num_samples - 1)
        self._keep = min(num_samples, math.floor(self._position) + 2)
        self._kept: Tensor | None = None

    def update(self, chunk: Tensor) -> None:
        """Count samples ``[S, ...]``."""
        pool = chunk if self._kept is None else torch.cat([self._kept, chunk])
        self._kept = pool.topk(min(self._keep, len(pool)), dim=0, largest=self._largest).values

    def result(self) -> Tensor:
        """The quantile, between two samples interpolated linearly; ValueError before the first one."""
        if self._kept is None:
            raise ValueError("no samples")
        low = math.floor(self._position)
        high = min(low + 1, len(self._kept) - 1)
        return torch.lerp(self._kept[low], self._kept[high], self._position - low)


@dataclass(frozen=True)
class Prediction:
    """Moments of a model's output over posterior samples.

    Attributes:
        mean: Mean over samples, of the output's shape.
        variance: Unbiased variance over samples; zero for a single sample.
        quantiles: One tensor of the output's shape for each probability asked for.
        num_samples: Number of samples.
        samples: ``[S, ...]`` when asked for.
    """

    mean: Tensor
    variance: Tensor
    num_samples: int
    quantiles: dict[float, Tensor] = field(default_factory=dict)
    samples: Tensor | None = None


def predict(
    guide: AttentionGuide,
    *args: Any,
    num_samples: int = 100,
    noise: Noise = "attention",
    transform: Callable[[Tensor], Tensor] | None = None,
    quantiles: Sequence[float] = (),
    keep_samples: bool = False,
    chunk_size: int | None = None,
    memory_budget: float | None = None,
    seed: int | None = None,
    **kwargs: Any,
) -> Prediction:
    r"""Average a model's output over the posterior, :math:`\frac1S \sum_s f(x, W^{(s)})`, in a stream.

    Mean and variance need no memory for the samples; a quantile ``q`` keeps the ``min(q, 1 - q) * S`` outermost ones
    and is exact (linear interpolation, as :func:`torch.quantile`). Run it with ``noise`` "attention", "dropout" and
    "both" to split the predictive variance into its sources.

    Args:
        guide: The guide, with or without handlers around it; its model is run and must return a tensor.
        args: Arguments of the model (without observations).
        num_samples: Number of samples S.
        noise: What is random, as in :func:`sample_posterior`. Dropout is that of dropout modules, and of modules with a
            float attribute ``dropout``.
        transform: Applied to each output, for example ``lambda logits: logits.softmax(-1)``.
        quantiles: Probabilities in [0, 1].
        keep_samples: Return the samples too.
        chunk_size: Samples drawn in one pass.
        memory_budget: Bytes that the samples of one pass may take; samples that are kept come on top.
        seed: Seed of this call alone.
        kwargs: Keyword arguments of the model.

    Raises:
        TypeError: As there, or the output is no floating-point tensor.
        ValueError: As there, or a probability outside [0, 1].

    Example:
        >>> from pyro_attention import FixedGammaPrior, LatentAttention, Weibull
        >>> attention = LatentAttention("attention", FixedGammaPrior())
        >>> guide = AttentionGuide(lambda scores, values: attention(scores, values).context, Weibull())
        >>> prediction = predict(guide, torch.zeros(1, 2, 3), torch.ones(1, 3, 4), num_samples=5, quantiles=[0.5])
        >>> prediction.mean.shape, sorted(prediction.quantiles)
        (torch.Size([1, 2, 4]), [0.5])

    Source: Fan et al. (2020), Bayesian Attention Modules, section 4.2, for the use of both sources of noise.
    """
    order = {q: OrderStatistics(q, num_samples) for q in quantiles}
    moments, samples = Moments(), []
    run = Run(guide, args, kwargs, whole=True)
    with closing(passes(run, num_samples, noise, chunk_size, memory_budget, seed)) as draws:
        for drawn in draws:
            chunk = outputs(drawn) if transform is None else transform(outputs(drawn))
            _check_averageable(chunk, transformed=transform is not None)
            moments.update(chunk)
            for statistics in order.values():
                statistics.update(chunk)
            if keep_samples:
                samples.append(chunk)
            del drawn, chunk  # the next pass needs the memory
    return Prediction(
        mean=moments.mean,
        variance=moments.variance,
        num_samples=moments.count,
        quantiles={q: statistics.result() for q, statistics in order.items()},
        samples=torch.cat(samples) if keep_samples else None,
    )


def _check_averageable(chunk: Any, *, transformed: bool) -> None:
    """Raise TypeError or ValueError unless outputs are numbers that have a mean."""
    if not isinstance(chunk, Tensor) or not chunk.is_floating_point():
        seen = f"{chunk.dtype} (labels, say)" if isinstance(chunk, Tensor) else type(chunk).__name__
        raise TypeError(
            f"{'transform' if transformed else 'the model'} returned {seen}, whose mean says nothing, expected "
            f"floating point such as logits; return those from the model, or pass transform=, for example "
            f"lambda labels: torch.nn.functional.one_hot(labels, classes).float()"
        )
    if not chunk.isfinite().all():
        raise ValueError(
            f"{'transform' if transformed else 'the model'} returned {int((~chunk.isfinite()).sum())} of "
            f"{chunk.numel()} numbers NaN or infinite, which have no mean; where -inf stands for an impossible class, "
            f"pass transform=lambda logits: logits.softmax(-1)"
        )
