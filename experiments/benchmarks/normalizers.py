"""Training steps of self-attention with each normalizer against softmax, by the number of positions."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor

from experiments.benchmarks.timing import Timing, interleave, training_step
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    DoublyNormalized,
    Hybrid,
    MultiheadAttention,
    Soft,
    Softmax,
    Weibull,
)
from pyro_attention.families.base import Family
from pyro_attention.normalizers import Normalizer

__all__ = ["LENGTHS", "make_step", "run"]

LENGTHS = (64, 128, 256, 512)
BATCH, WIDTH, HEADS = 4, 256, 4


class _SelfAttention(PyroModule):
    """One layer, observed through the mean square of its output."""

    def __init__(self, normalizer: Normalizer) -> None:
        super().__init__()
        self.layer = MultiheadAttention(WIDTH, HEADS, normalizer=normalizer)

    def forward(self, x: Tensor) -> None:
        with pyro.plate("batch", len(x)):
            context = self.layer(x, x, x, need_weights=False)[0]
            pyro.factor("output", -context.square().sum((-1, -2)))


def make_step(normalizer: Normalizer, family: Family, length: int) -> Callable[[], Tensor]:
    """Forward, backward and Adam through guide and ELBO; the step returns the loss."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, length, WIDTH)
    model = _SelfAttention(normalizer)
    loss = AttentionELBO()(model, AttentionGuide(model, family))
    return training_step(loss, x)


def run(*, rounds: int = 50) -> dict[str, Timing]:
    """Time the steps; ratios are to softmax of the same length and guide."""
    timings: dict[str, Timing] = {}
    for guide, family in {"soft": Soft, "Weibull": Weibull}.items():
        for length in LENGTHS:
            normalizers = {"softmax": Softmax(), "doubly normalised": DoublyNormalized(), "hybrid": Hybrid(HEADS)}
            steps = {name: make_step(normalizer, family(), length) for name, normalizer in normalizers.items()}
            found = interleave(steps, rounds=rounds, warm_up=2)
            timings |= {f"{guide}, n = {length}, {name}": timing for name, timing in found.items()}
    return timings
