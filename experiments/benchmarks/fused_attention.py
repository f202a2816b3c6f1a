"""Fused Bayesian attention against torch's softmax attention on a GPU: time and memory of forward and backward.

python -m experiments.benchmarks.fused_attention
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.fused_attention",
        "experiments.benchmarks.config:FusedConfig",
        "experiments.benchmarks.fused_attention:run",
    )

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from experiments.benchmarks import report
from experiments.benchmarks.config import FusedConfig
from experiments.benchmarks.layers import LatentLayer, SoftmaxLayer, weibull_loss
from experiments.benchmarks.timing import backward_step, interleave
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive
from pyro_attention.blocked.ops.fused_attention import unfused

__all__ = ["CONTESTANTS", "Contestant", "make_step", "run"]

SCRIPT = "experiments.benchmarks.fused_attention"
WARM_UP = 3
Contestant = Literal["softmax", "Bayesian"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
QUANTITIES = report.quantities("softmax attention's", memory="beyond that before", clock=" on the GPU, by CUDA events,")


def make_step(contestant: Contestant, config: FusedConfig, length: int, device: torch.device) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    shape, dtype = (3, config.batch, config.heads, length, config.width), getattr(torch, config.dtype)
    vectors = torch.randn(shape, device=device, dtype=dtype)
    if contestant == "softmax":
        return backward_step(SoftmaxLayer(vectors, causal=config.causal))
    return backward_step(weibull_loss(LatentLayer(vectors, causal=config.causal)))


@exclusive
def run(config: FusedConfig) -> dict[str, float]:
    """Measure, print the table and write the metrics, which are returned.

    Raises:
        UserError: There is no GPU, or one on which attention is not fused.
    """
    _check(config)
    report.open_folder(config.out, SCRIPT)
    metrics: dict[str, float] = {}
    for length in report.progress(config.lengths, "length"):
        steps = {name: make_step(name, config, length, torch.device("cuda")) for name in CONTESTANTS}
        peaks = {name: _peak_memory(step) for name, step in steps.items()}
        with torch.device("cuda"):
            times = interleave(steps, rounds=config.rounds, warm_up=WARM_UP)
        metrics |= report.sized_metrics(f"{length}_positions", times, peaks)
    sizes = {f"{length}_positions": str(length) for length in config.lengths}
    rows = report.rows_by_size(metrics, "positions", sizes, CONTESTANTS, digits=2)
    text = (
        f"Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, in fused kernels, "
        f"and of torch's scaled_dot_product_attention: {config.batch} × {config.heads} heads of width {config.width} "
        f"in {config.dtype}{', causal' if config.causal else ''}. Medians of {config.rounds} interleaved rounds by "
        f"CUDA events, ratios to softmax attention in the same round (10-90 %); memory at the peak beyond that before."
    )
    report.publish(
        SCRIPT, metrics, QUANTITIES, rows, out=config.out, results=config.results, device="cuda",
        name="fused_attention", title="Fused attention", text=text,
        command=command_line(SCRIPT, config, always=("lengths", "width", "dtype", "heads", "batch", "rounds")),
    )  # fmt: skip
    return metrics


def _check(config: FusedConfig) -> None:
    if not torch.cuda.is_available():
        raise UserError(
            "there is no GPU here: torch.cuda.is_available() is False; run this on a machine with one, or on a CPU "
            "experiments.benchmarks.blocked_attention, which measures the plain blocks"
        )
    vectors = torch.empty(1, config.width, device="cuda", dtype=getattr(torch, config.dtype))
    reason = unfused(vectors, vectors, vectors)
    if reason is not None:
        raise UserError(
            f"attention of width {config.width} in {config.dtype} is not fused on {torch.cuda.get_device_name()}: "
            f"{reason}"
        )


def _peak_memory(step: Callable[[], object]) -> float:
    """In MB, gradients included: the first call leaves them behind."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 1e6
