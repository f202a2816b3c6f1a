"""Blocked and dense Bayesian attention, by the number of positions: time and memory of forward and backward.

python -m experiments.benchmarks.blocked_attention
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    sys.exit(
        run_script(
            "experiments.benchmarks.config:BlockedConfig",
            "experiments.benchmarks.blocked_attention:run",
            name="experiments.benchmarks.blocked_attention",
        )
    )

import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch
from pyro import factor
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from experiments.benchmarks import blocked_attention_report as report
from experiments.benchmarks.config import BlockedConfig
from experiments.benchmarks.memory import peak_memory
from experiments.benchmarks.timing import Timing, interleave, threads_text
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_results
from experiments.harness.results import write_environment, write_metrics
from experiments.reporting.figures import save
from experiments.reporting.page import hardware, update_section
from experiments.reporting.tables import as_table
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    KeyNetwork,
    LatentAttention,
    Weibull,
)
from pyro_attention.blocked import attend_blocked

__all__ = ["CONTESTANTS", "BlockedConfig", "Contestant", "compare", "make_step", "run"]

SCRIPT = "experiments.benchmarks.blocked_attention"
HEADS, WIDTH, CONCENTRATION = 2, 32, 10.0
Contestant = Literal["scaled_dot_product_attention", "dense", "naive dense", "blocked"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
DENSE = ("dense", "naive dense")  # those whose memory grows as the square of the length
QUANTITIES = {
    "ms": "median time of forward and backward in milliseconds",
    "ratio": "that time divided by scaled_dot_product_attention's in the same round, median over rounds",
    "ratio_low": "10 % quantile of that ratio over rounds",
    "ratio_high": "90 % quantile of that ratio over rounds",
    "peak_mb": "memory at the peak of forward and backward beyond that before the first one, in MB (10^6 bytes)",
}


class _Layer(PyroModule):
    """Scaled dot-product attention of free queries, keys and values, observed through the mean of squares."""

    def __init__(self, length: int, *, blocked: bool) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(3, HEADS, length, WIDTH))
        self.attention = LatentAttention("attention", ContextualGammaPrior(WIDTH))
        self.blocked = blocked

    def forward(self) -> None:
        queries, keys, values = self.vectors
        queries = queries / math.sqrt(WIDTH)
        if self.blocked:
            output = attend_blocked(self.attention, queries, keys, values)
        else:
            output = self.attention(queries @ keys.transpose(-1, -2), values, keys=keys)
        factor("output", -output.context.square().mean())


class _Softmax(nn.Module):
    """Torch's softmax attention of free queries, keys and values, and the mean of squares of the result."""

    def __init__(self, length: int) -> None:
        super().__init__()
        # with a batch of one: without a batch torch does not take its fused kernel
        self.vectors = nn.Parameter(torch.randn(3, 1, HEADS, length, WIDTH))

    def forward(self) -> Tensor:
        context: Tensor = scaled_dot_product_attention(*self.vectors)
        return context.square().mean()


class _Naive(nn.Module):
    """The same as a user would write it: Weibull weights, their sum, and torch's distributions for the KL."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(3, HEADS, length, WIDTH))
        self.network = KeyNetwork(WIDTH)
        self.log_concentration = nn.Parameter(torch.tensor(CONCENTRATION).log())

    def forward(self) -> Tensor:
        queries, keys, values = self.vectors
        k = self.log_concentration.exp()
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(WIDTH)
        scale = scores.softmax(-1) / torch.lgamma(1 + 1 / k).exp()
        prior = self.network(keys, Dense()).exp()
        weights = scale * torch.empty_like(scale).exponential_() ** (1 / k)
        context = weights / weights.sum(-1, keepdim=True) @ values
        posterior = TorchWeibull(scale, k, validate_args=False)
        kl = kl_divergence(posterior, Gamma(prior.expand_as(scale), 1.0, validate_args=False))
        return context.square().mean() + kl.sum()


def make_step(contestant: Contestant, length: int) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    if contestant == "scaled_dot_product_attention":
        loss: nn.Module = _Softmax(length)
    elif contestant == "naive dense":
        loss = _Naive(length)
    else:
        model = _Layer(length, blocked=contestant == "blocked")
        loss = AttentionELBO()(model, AttentionGuide(model, Weibull(CONCENTRATION, learnable=True)))

    def step() -> Tensor:
        loss.zero_grad()
        value: Tensor = loss()
        value.backward()
        return value.detach()

    return step


def compare(*, rounds: int = 5, length: int = 2048) -> dict[str, Timing]:
    """Time all contestants at one length; ratios are to torch's softmax attention."""
    return interleave({name: make_step(name, length) for name in CONTESTANTS}, rounds=rounds, warm_up=1)


@exclusive
def run(config: BlockedConfig) -> dict[str, float]:
    """Measure, print the table and write metrics and picture; the metrics are returned.

    Raises:
        UserError: There is not enough memory, or the folder holds something else.
    """
    open_results(config.out, SCRIPT)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    metrics: dict[str, float] = {}
    for length in tqdm(config.lengths, unit="length", disable=not sys.stderr.isatty(), leave=False):
        names = [name for name in CONTESTANTS if name not in DENSE or length <= config.dense_up_to]
        peaks = {name: peak_memory(make_step, name, length) for name in names}
        times = interleave({name: make_step(name, length) for name in names}, rounds=config.rounds, warm_up=1)
        for name in names:
            numbers = times[name].quantities(peak_mb=peaks[name])
            metrics |= {f"{length}_positions/{name}/{quantity}": value for quantity, value in numbers.items()}
    write_environment(config.out, torch.device("cpu"), script=SCRIPT)
    write_metrics(config.out, metrics, {name: QUANTITIES[name.rpartition("/")[2]] for name in metrics})
    _report(config, metrics)
    return metrics


def _report(config: BlockedConfig, metrics: dict[str, float]) -> None:
    """Table, picture and, where wanted, the section of the page."""
    rows = report.rows(metrics, config.lengths, CONTESTANTS)
    picture = report.figure(metrics, config.lengths, CONTESTANTS)
    path = save(picture, config.out / "blocked_attention.png")
    print(as_table(rows), config.out / "metrics.json", path, sep="\n")
    if config.results is not None:
        beside = Path("pictures", path.name)
        save(picture, config.results.parent / beside)
        machine = f"{hardware([config.out])}, {threads_text()}"
        layer = f"{HEADS} heads of width {WIDTH}"
        command = command_line(SCRIPT, config, always=("rounds",))
        text = report.section(rows, command, rounds=config.rounds, layer=layer, machine=machine, picture=beside)
        update_section(config.results, "blocked_attention", text)
