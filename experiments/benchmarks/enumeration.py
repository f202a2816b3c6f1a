"""Enumerated alignments of a translation batch: by hand, and by Pyro with Categorical and with TokenLikelihood.

python -m experiments.benchmarks.enumeration
"""

from __future__ import annotations

import sys

from experiments.harness.cli import run_script

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    sys.exit(
        run_script(
            "experiments.benchmarks.config:EnumerationConfig",
            "experiments.benchmarks.enumeration:run",
            name="experiments.benchmarks.enumeration",
        )
    )

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceEnum_ELBO
from torch import Tensor, nn
from tqdm import tqdm

from experiments.benchmarks.config import EnumerationConfig
from experiments.benchmarks.memory import peak_memory
from experiments.benchmarks.timing import interleave, threads_text, with_spread
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive, open_results
from experiments.harness.results import write_environment, write_metrics
from experiments.reporting.page import hardware, update_section
from experiments.reporting.tables import as_table, markdown_table
from pyro_attention.likelihoods import TokenLikelihood

__all__ = ["CONTESTANTS", "Contestant", "EnumerationConfig", "Sizes", "make_step", "run"]

SCRIPT = "experiments.benchmarks.enumeration"
Contestant = Literal["logsumexp, by hand", "Categorical", "TokenLikelihood"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
QUANTITIES = {
    "ms": "median time of forward and backward in milliseconds",
    "ratio": "that time divided by that of logsumexp by hand in the same round, median over rounds",
    "ratio_low": "10 % quantile of that ratio over rounds",
    "ratio_high": "90 % quantile of that ratio over rounds",
    "peak_mb": "memory at the peak of forward and backward beyond that before the first one, in MB (10^6 bytes); "
    "median of three processes",
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch: source and target positions, sentences, width of the network and vocabulary."""

    sources: int
    targets: int = 25
    batch: int = 16
    width: int = 256
    vocabulary: int = 10_000


class Translation(nn.Module):
    """The last layer of a translation model, p(token | alignment, states), with a prior of the alignment.

    Called, it is a Pyro model whose enumerated site is the alignment.
    """

    def __init__(self, contestant: Contestant, sizes: Sizes) -> None:
        super().__init__()
        self.contestant = contestant
        self.scores = nn.Parameter(torch.randn(sizes.batch, sizes.targets, sizes.sources))
        self.keys = nn.Parameter(torch.randn(sizes.batch, sizes.sources, sizes.width))
        self.states = nn.Parameter(torch.randn(sizes.batch, sizes.targets, sizes.width))
        self.output = nn.Linear(sizes.width, sizes.vocabulary)

    def forward(self, token: Tensor) -> None:
        pyro.module("translation", self)
        batch, targets = token.shape
        with pyro.plate("batch", batch, dim=-2), pyro.plate("targets", targets, dim=-1):
            alignment = dist.Categorical(logits=self.scores)
            z = pyro.sample("z", alignment, infer={"enumerate": "parallel"})
            features = (self.keys[torch.arange(batch)[:, None], z] + self.states).tanh()
            pyro.sample("token", self._likelihood(features), obs=token)

    def loss_by_hand(self, token: Tensor) -> Tensor:
        """Negative log evidence from the logits of all alignments, ``[sources, batch, targets, vocabulary]``."""
        features = (self.keys.transpose(0, 1).unsqueeze(2) + self.states).tanh()
        index = token.expand(*features.shape[:-1]).unsqueeze(-1)
        log_f = self.output(features).log_softmax(-1).gather(-1, index).squeeze(-1)
        return -(log_f + self.scores.log_softmax(-1).movedim(-1, 0)).logsumexp(0).sum()

    def _likelihood(self, features: Tensor) -> dist.TorchDistribution:
        if self.contestant == "TokenLikelihood":
            return TokenLikelihood(features, self.output.weight, self.output.bias)
        # without its check of all logits, which would be slower still
        return dist.Categorical(logits=self.output(features), validate_args=False)


def make_step(contestant: Contestant, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward and backward of the negative log evidence, which is returned."""
    torch.manual_seed(0)
    model = Translation(contestant, sizes)
    token = torch.randint(sizes.vocabulary, (sizes.batch, sizes.targets))
    elbo = TraceEnum_ELBO(max_plate_nesting=2)

    def step() -> Tensor:
        model.zero_grad()
        by_hand = contestant == "logsumexp, by hand"
        loss = model.loss_by_hand(token) if by_hand else elbo.differentiable_loss(model, lambda *_: None, token)
        loss.backward()
        return loss.detach()

    return step


@exclusive
def run(config: EnumerationConfig) -> dict[str, float]:
    """Measure, print the table and write the metrics, which are returned.

    Raises:
        UserError: There is not enough memory, or the folder holds something else.
    """
    open_results(config.out, SCRIPT)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    metrics: dict[str, float] = {}
    for sources in tqdm(config.sources, unit="size", disable=not sys.stderr.isatty(), leave=False):
        sizes = Sizes(sources, vocabulary=config.vocabulary)
        # what the allocator has not given back yet differs from process to process
        peaks = {name: median(peak_memory(make_step, name, sizes) for _ in range(3)) for name in CONTESTANTS}
        times = interleave({name: make_step(name, sizes) for name in CONTESTANTS}, rounds=config.rounds, warm_up=1)
        for name in CONTESTANTS:
            numbers = times[name].quantities(peak_mb=peaks[name])
            metrics |= {f"{sources}_sources/{name}/{quantity}": value for quantity, value in numbers.items()}
    write_environment(config.out, torch.device("cpu"), script=SCRIPT)
    write_metrics(config.out, metrics, {name: QUANTITIES[name.rpartition("/")[2]] for name in metrics})
    rows = _rows(metrics, config.sources)
    print(as_table(rows), config.out / "metrics.json", sep="\n")
    if config.results is not None:
        update_section(config.results, "enumeration", _section(config, rows))
    return metrics


def _section(config: EnumerationConfig, rows: list[dict[str, str]]) -> str:
    sizes = Sizes(0, vocabulary=config.vocabulary)
    command = command_line(SCRIPT, config, always=("rounds",))
    return (
        f"## Exact enumeration of alignments\n\n`{command}`, "
        f"on {hardware([config.out])}, {threads_text()}.\n\n"
        f"Forward and backward of the last layer of a translation model, the alignment summed out by Pyro: "
        f"{sizes.batch} sentences of {sizes.targets} words, width {sizes.width}, {sizes.vocabulary} tokens. Medians of "
        f"{config.rounds} interleaved rounds, ratios to logsumexp over all logits, by hand and without Pyro, in each "
        f"round (10-90 %); memory at the peak beyond that before, median of three processes.\n\n{markdown_table(rows)}"
    )


def _rows(metrics: dict[str, float], sources: tuple[int, ...]) -> list[dict[str, str]]:
    """A row for each number of source positions."""
    rows = []
    for count in sources:
        row = {"sources": str(count)}
        for name in CONTESTANTS:
            found = {quantity: metrics[f"{count}_sources/{name}/{quantity}"] for quantity in QUANTITIES}
            row[f"{name} ms"] = f"{found['ms']:.0f}"
            if name != CONTESTANTS[0]:
                row[f"{name} ratio"] = with_spread(found, "ratio")
            row[f"{name} MB"] = f"{found['peak_mb']:.0f}"
        rows.append(row)
    return rows
