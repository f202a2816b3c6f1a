"""Mean, variance and quantiles of samples that come a chunk at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_attention._checks import as_float

__all__ = ["Moments", "OrderStatistics"]


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
