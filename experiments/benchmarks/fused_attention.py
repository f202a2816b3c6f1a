"""Fused Bayesian attention against torch's softmax attention on a GPU: time and memory of forward and backward."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("fused_attention", "FusedConfig")

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.benchmarks.blocked_attention import LatentLayer, SoftmaxLayer, bayesian_step
from experiments.benchmarks.config import FusedConfig
from experiments.benchmarks.measuring import (
    Outcome,
    command,
    interleave,
    progress,
    rows_by_size,
    sized_metrics,
    training_step,
)
from experiments.files import UserError
from pyro_attention.blocked.ops.fused_attention import unfused

CONTESTANTS = ("softmax", "Bayesian")


def make_step(contestant: str, config: FusedConfig, length: int, device: torch.device) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    shape, dtype = (3, config.batch, config.heads, length, config.width), getattr(torch, config.dtype)
    vectors = torch.randn(shape, device=device, dtype=dtype)
    if contestant == "softmax":
        return training_step(SoftmaxLayer(vectors, causal=config.causal), optimizer=None)
    return bayesian_step(LatentLayer(vectors, causal=config.causal))


@command
def run(config: FusedConfig) -> Outcome:
    """Measure by the number of positions.

    Raises:
        UserError: There is no GPU, or one on which attention is not fused.
    """
    _check(config)
    metrics = dict[str, float]()
    for length in progress(config.lengths, "length"):
        steps = {name: make_step(name, config, length, torch.device("cuda")) for name in CONTESTANTS}
        peaks = {name: _peak_memory(step) for name, step in steps.items()}
        with torch.device("cuda"):
            times = interleave(steps, rounds=config.rounds, warm_up=3)
        metrics |= sized_metrics(f"{length}_positions", times, peaks)
    sizes = {f"{length}_positions": str(length) for length in config.lengths}
    return Outcome(
        metrics=metrics,
        rows=rows_by_size(metrics, "positions", sizes, CONTESTANTS, digits=2),
        name="fused_attention",
        title="Fused attention",
        reference="softmax attention's",
        clock=" on the GPU, by CUDA events,",
        memory="beyond that before",
        text=f"Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, in fused "
        f"kernels, and of torch's scaled_dot_product_attention: {config.batch} × {config.heads} heads of width "
        f"{config.width} in {config.dtype}{', causal' if config.causal else ''}. Medians of {config.rounds} "
        f"interleaved rounds by CUDA events, ratios to softmax attention in the same round (10-90 %); memory at the "
        f"peak beyond that before.",
        always=("lengths", "width", "dtype", "heads", "batch", "rounds"),
        device="cuda",
    )


def _check(config: FusedConfig) -> None:
    if not torch.cuda.is_available():
        raise UserError("there is no GPU here; run this on a machine with one, or on a CPU blocked_attention")
    vectors = torch.empty(1, config.width, device="cuda", dtype=getattr(torch, config.dtype))
    reason = unfused(vectors, vectors, vectors)
    if reason is not None:
        raise UserError(f"attention of width {config.width} in {config.dtype} is not fused on this GPU: {reason}")


def _peak_memory(step: Callable[[], object]) -> float:
    """In MB, gradients included: the first call leaves them behind."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 1e6
