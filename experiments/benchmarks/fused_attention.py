"""Fused Bayesian attention against torch's softmax attention on a GPU: time and memory of forward and backward.

python -m experiments.benchmarks.fused_attention
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    sys.exit(
        run_script(
            "experiments.benchmarks.config:FusedConfig",
            "experiments.benchmarks.fused_attention:run",
            name="experiments.benchmarks.fused_attention",
        )
    )

import math
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from experiments.benchmarks.config import FusedConfig
from experiments.benchmarks.timing import interleave, with_spread
from experiments.files import UserError
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_results
from experiments.harness.results import write_environment, write_metrics
from experiments.reporting.page import hardware, update_section
from experiments.reporting.tables import as_table, markdown_table
from pyro_attention import AttentionELBO, AttentionGuide, ContextualGammaPrior, LatentAttention, Weibull
from pyro_attention.blocked import attend_blocked
from pyro_attention.blocked.ops.fused_attention import fuses

__all__ = ["CONTESTANTS", "Contestant", "FusedConfig", "make_step", "run"]

SCRIPT = "experiments.benchmarks.fused_attention"
CONCENTRATION, WARM_UP = 10.0, 3
Contestant = Literal["softmax", "Bayesian"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
QUANTITIES = {
    "ms": "median time of forward and backward on the GPU in milliseconds, by CUDA events",
    "ratio": "that time divided by softmax attention's in the same round, median over rounds",
    "ratio_low": "10 % quantile of that ratio over rounds",
    "ratio_high": "90 % quantile of that ratio over rounds",
    "peak_mb": "memory at the peak of forward and backward beyond that before, in MB (10^6 bytes)",
}


class _Softmax(nn.Module):
    """Scaled dot-product attention of free queries, keys and values, and the mean of squares of the result."""

    def __init__(self, config: FusedConfig, length: int, device: torch.device) -> None:
        super().__init__()
        self.vectors, self.causal = _vectors(config, length, device), config.causal

    def forward(self) -> Tensor:
        queries, keys, values = self.vectors
        context = scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        return context.square().mean(dtype=torch.float32)


class _Bayesian(PyroModule):
    """The same with latent weights, observed through the mean of squares."""

    def __init__(self, config: FusedConfig, length: int, device: torch.device) -> None:
        super().__init__()
        self.vectors, self.causal = _vectors(config, length, device), config.causal
        self.attention = LatentAttention("attention", ContextualGammaPrior(config.width).to(device))

    def forward(self) -> None:
        queries, keys, values = self.vectors
        queries = queries / math.sqrt(queries.size(-1))
        with pyro.plate("batch", queries.size(0), dim=-1):
            context = attend_blocked(self.attention, queries, keys, values, causal=self.causal).context
        pyro.factor("output", -context.square().mean(dtype=torch.float32))


def _vectors(config: FusedConfig, length: int, device: torch.device) -> nn.Parameter:
    shape = 3, config.batch, config.heads, length, config.width
    return nn.Parameter(torch.randn(shape, device=device, dtype=getattr(torch, config.dtype)))


def make_step(contestant: Contestant, config: FusedConfig, length: int, device: torch.device) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    if contestant == "softmax":
        loss: nn.Module = _Softmax(config, length, device)
    else:
        family = Weibull(CONCENTRATION, learnable=True).to(device)
        model = _Bayesian(config, length, device)
        loss = AttentionELBO()(model, AttentionGuide(model, family))

    def step() -> Tensor:
        loss.zero_grad()
        value: Tensor = loss()
        value.backward()
        return value.detach()

    return step


@exclusive
def run(config: FusedConfig) -> dict[str, float]:
    """Measure, print the table and write the metrics, which are returned.

    Raises:
        UserError: There is no GPU, or one on which attention is not fused, or the folder holds something else.
    """
    _check(config)
    open_results(config.out, SCRIPT)
    metrics: dict[str, float] = {}
    for length in tqdm(config.lengths, unit="length", disable=not sys.stderr.isatty(), leave=False):
        steps = {name: make_step(name, config, length, torch.device("cuda")) for name in CONTESTANTS}
        peaks = {name: _peak_memory(step) for name, step in steps.items()}
        with torch.device("cuda"):
            times = interleave(steps, rounds=config.rounds, warm_up=WARM_UP)
        for name in CONTESTANTS:
            numbers = times[name].quantities(peak_mb=peaks[name])
            metrics |= {f"{length}_positions/{name}/{quantity}": value for quantity, value in numbers.items()}
    write_environment(config.out, torch.device("cuda"), script=SCRIPT)
    write_metrics(config.out, metrics, {name: QUANTITIES[name.rpartition("/")[2]] for name in metrics})
    rows = _rows(metrics, config.lengths)
    print(as_table(rows), config.out / "metrics.json", sep="\n")
    if config.results is not None:
        update_section(config.results, "fused_attention", _section(config, rows))
    return metrics


def _check(config: FusedConfig) -> None:
    if not torch.cuda.is_available():
        raise UserError(
            "there is no GPU here: torch.cuda.is_available() is False; run this on a machine with one, and with a "
            "build of torch for it. On a CPU, experiments.benchmarks.blocked_attention measures the plain blocks"
        )
    vectors = torch.empty(1, config.width, device="cuda", dtype=getattr(torch, config.dtype))
    if not fuses(vectors, vectors, vectors):
        raise UserError(
            f"attention of width {config.width} in {config.dtype} is not fused on {torch.cuda.get_device_name()}; it "
            f"needs Triton (pip install 'pyro-attention[triton]'), compute capability 8.0 and a width of at most 256"
        )


def _peak_memory(step: Callable[[], object]) -> float:
    """In MB, gradients included: the first call leaves them behind."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def _rows(metrics: Mapping[str, float], lengths: tuple[int, ...]) -> list[dict[str, str]]:
    """A row for each number of positions."""
    rows = []
    for length in lengths:
        row = {"positions": str(length)}
        for name in CONTESTANTS:
            found = {quantity: metrics[f"{length}_positions/{name}/{quantity}"] for quantity in QUANTITIES}
            row[f"{name} ms"] = f"{found['ms']:.2f}"
            if name != "softmax":
                row["ratio"] = with_spread(found, "ratio")
            row[f"{name} MB"] = f"{found['peak_mb']:.0f}"
        rows.append(row)
    return rows


def _section(config: FusedConfig, rows: list[dict[str, str]]) -> str:
    always = ("lengths", "width", "dtype", "heads", "batch", "rounds")
    command = command_line(SCRIPT, config, always=always)
    return (
        f"## Fused attention\n\n`{command}`, on {hardware([config.out])}.\n\n"
        f"Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, in fused kernels, "
        f"and of torch's scaled_dot_product_attention: {config.batch} × {config.heads} heads of width {config.width} "
        f"in {config.dtype}{', causal' if config.causal else ''}. Medians of {config.rounds} interleaved rounds by "
        f"CUDA events, ratios to softmax attention in the same round (10-90 %); memory at the peak "
        f"beyond that before.\n\n"
        f"{markdown_table(rows)}"
    )
