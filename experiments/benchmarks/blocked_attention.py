"""Blocked and dense Bayesian attention, by the number of positions: time and memory of forward and backward.

python -m experiments.benchmarks.blocked_attention
"""

from __future__ import annotations

from experiments.harness.cli import launch

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    launch(
        "experiments.benchmarks.blocked_attention",
        "experiments.benchmarks.config:BlockedConfig",
        "experiments.benchmarks.blocked_attention:run",
    )

from collections.abc import Callable
from typing import Literal, get_args

import torch
from matplotlib.figure import Figure
from torch import Tensor

from experiments.benchmarks import report
from experiments.benchmarks.config import BlockedConfig
from experiments.benchmarks.layers import LatentLayer, NaiveLayer, SoftmaxLayer, weibull_loss
from experiments.benchmarks.memory import measure
from experiments.benchmarks.timing import Timing, backward_step, interleave
from experiments.harness.cli import command_line
from experiments.harness.folder import exclusive

__all__ = ["CONTESTANTS", "Contestant", "compare", "make_step", "run"]

SCRIPT = "experiments.benchmarks.blocked_attention"
HEADS, WIDTH = 2, 32
Contestant = Literal["scaled_dot_product_attention", "dense", "naive dense", "blocked"]
CONTESTANTS: tuple[Contestant, ...] = get_args(Contestant)
DENSE = ("dense", "naive dense")  # those whose memory grows as the square of the length
QUANTITIES = report.quantities("scaled_dot_product_attention's")
STYLES = dict(zip(CONTESTANTS, [("0.45", "s"), ("#d1495b", "^"), ("#e09f3e", "v"), ("#1b6ca8", "o")], strict=True))


def make_step(contestant: Contestant, length: int) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    vectors = torch.randn(3, HEADS, length, WIDTH)
    if contestant == "scaled_dot_product_attention":
        return backward_step(SoftmaxLayer(vectors.unsqueeze(1)))
    if contestant == "naive dense":
        return backward_step(NaiveLayer(vectors))
    return backward_step(weibull_loss(LatentLayer(vectors, blocked=contestant == "blocked")))


def compare(*, rounds: int = 5, length: int = 2048) -> dict[str, Timing]:
    """Time all contestants at one length; ratios are to torch's softmax attention."""
    return interleave({name: make_step(name, length) for name in CONTESTANTS}, rounds=rounds, warm_up=1)


@exclusive
def run(config: BlockedConfig) -> dict[str, float]:
    """Measure, print the table and write metrics and picture; the metrics are returned."""
    report.open_folder(config.out, SCRIPT, config.threads)
    metrics: dict[str, float] = {}
    for length in report.progress(config.lengths, "length"):
        names = [name for name in CONTESTANTS if name not in DENSE or length <= config.dense_up_to]
        metrics |= report.sized_metrics(f"{length}_positions", *measure(make_step, names, length, rounds=config.rounds))
    text = f"""\
Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, {HEADS} heads of
width {WIDTH}, learned concentration: the library's dense and blocked paths, and "naive dense" as a user would write it.
Beside them torch's softmax attention of the same shapes, without anything Bayesian. Medians of {config.rounds}
interleaved rounds, ratios to torch's softmax attention in the same round; memory at the peak beyond that before, each
in a fresh process."""
    report.publish(
        SCRIPT, metrics, QUANTITIES, _rows(metrics, config.lengths), out=config.out, results=config.results,
        name="blocked_attention", title="Blocked attention", text=text,
        command=command_line(SCRIPT, config, always=("rounds",)),
        figure=_figure(metrics, config.lengths), caption="Time and peak memory against the number of positions",
    )  # fmt: skip
    return metrics


def _rows(metrics: dict[str, float], lengths: tuple[int, ...]) -> list[dict[str, str]]:
    table = []
    for length in lengths:
        for name in CONTESTANTS:
            found = {quantity: metrics.get(f"{length}_positions/{name}/{quantity}") for quantity in QUANTITIES}
            if found["ms"] is not None:
                row = {"positions": str(length), "attention": name, "ratio": f"{found['ratio']:.2f}"}
                row["10-90 % of the ratio"] = f"{found['ratio_low']:.2f} - {found['ratio_high']:.2f}"
                table.append(row | {"ms": f"{found['ms']:.0f}", "MB": f"{found['peak_mb']:.0f}"})
    return table


def _figure(metrics: dict[str, float], lengths: tuple[int, ...]) -> Figure:
    """Time and peak memory against positions, with lines of slope one and two."""
    figure = report.growth_figure(metrics, "positions", lengths, STYLES, slopes={1: "--", 2: ":"}, start=min(lengths))
    for axis in figure.axes:
        axis.set_xlabel("positions")
        axis.set_xticks(sorted(lengths), [str(length) for length in sorted(lengths)])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return figure
