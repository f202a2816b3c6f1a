"""One attention layer between free queries, keys and values: blocked and dense, by the number of positions."""

from __future__ import annotations

from experiments.benchmarks import start

if __name__ == "__main__":  # ahead of the other imports, which --help does not need
    start("blocked_attention", "BlockedConfig")

import math
from collections.abc import Callable
from contextlib import nullcontext

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import scaled_dot_product_attention

from experiments.benchmarks.config import BlockedConfig
from experiments.benchmarks.measuring import (
    Outcome,
    command,
    growth_figure,
    measure,
    progress,
    rows_by_contestant,
    training_step,
)
from pyro_attention import AttentionELBO, AttentionGuide, ContextualGammaPrior, Dense, LatentAttention, Weibull
from pyro_attention.blocked import attend_blocked
from pyro_attention.families.key_network import KeyNetwork

HEADS, WIDTH, CONCENTRATION = 2, 32, 10.0
STYLES = {
    "scaled_dot_product_attention": ("0.45", "s"),
    "dense": ("#d1495b", "^"),
    "naive dense": ("#e09f3e", "v"),
    "blocked": ("#1b6ca8", "o"),
}
CONTESTANTS = tuple(STYLES)
DENSE = ("dense", "naive dense")  # those whose memory grows as the square of the length


class SoftmaxLayer(nn.Module):
    """Torch's softmax attention; called, it gives the mean of squares of the result.

    Queries, keys and values are ``[3, B, H, N, D]``; without a batch torch does not take its fused kernel.
    """

    def __init__(self, vectors: Tensor, *, causal: bool = False) -> None:
        super().__init__()
        self.vectors, self.causal = nn.Parameter(vectors), causal

    def forward(self) -> Tensor:
        queries, keys, values = self.vectors
        context = scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        return context.square().mean(dtype=torch.float32)


class LatentLayer(PyroModule):
    """The same with latent weights: a Pyro model that is observed through the mean of squares.

    Queries, keys and values are ``[3, H, N, D]``, or with a batch ``[3, B, H, N, D]``; causal in blocks only.
    """

    def __init__(self, vectors: Tensor, *, blocked: bool = True, causal: bool = False) -> None:
        super().__init__()
        self.vectors, self.blocked, self.causal = nn.Parameter(vectors), blocked, causal
        self.attention = LatentAttention("attention", ContextualGammaPrior(vectors.size(-1)).to(vectors.device))

    def forward(self) -> None:
        queries, keys, values = self.vectors
        queries = queries / math.sqrt(queries.size(-1))
        with pyro.plate("batch", len(queries), dim=-1) if queries.dim() == 4 else nullcontext():
            if self.blocked:
                output = attend_blocked(self.attention, queries, keys, values, causal=self.causal)
            else:
                output = self.attention(queries @ keys.mT, values, keys=keys)
        pyro.factor("output", -output.context.square().mean(dtype=torch.float32))


class NaiveLayer(nn.Module):
    """The same of ``[3, H, N, D]`` as a user would write it: Weibull weights, and torch's distributions for the KL."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors, self.network = nn.Parameter(vectors), KeyNetwork(vectors.size(-1))
        self.log_concentration = nn.Parameter(torch.tensor(CONCENTRATION).log())

    def forward(self) -> Tensor:
        queries, keys, values = self.vectors
        k = self.log_concentration.exp()
        scale = (queries @ keys.mT / math.sqrt(queries.size(-1))).softmax(-1) / torch.lgamma(1 + 1 / k).exp()
        prior = self.network(keys, Dense()).exp()
        weights = scale * torch.empty_like(scale).exponential_() ** (1 / k)
        context = weights / weights.sum(-1, keepdim=True) @ values
        posterior = TorchWeibull(scale, k, validate_args=False)
        kl = kl_divergence(posterior, Gamma(prior.expand_as(scale), 1.0, validate_args=False))
        return context.square().mean() + kl.sum()


def bayesian_step(model: LatentLayer) -> Callable[[], Tensor]:
    """Forward and backward of the negative ELBO under a Weibull posterior with a learned concentration."""
    family = Weibull(CONCENTRATION, learnable=True).to(model.vectors.device)
    return training_step(AttentionELBO()(model, AttentionGuide(model, family)), optimizer=None)


def make_step(contestant: str, length: int) -> Callable[[], Tensor]:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood."""
    torch.manual_seed(0)
    vectors = torch.randn(3, HEADS, length, WIDTH)
    if contestant == "scaled_dot_product_attention":
        return training_step(SoftmaxLayer(vectors.unsqueeze(1)), optimizer=None)
    if contestant == "naive dense":
        return training_step(NaiveLayer(vectors), optimizer=None)
    return bayesian_step(LatentLayer(vectors, blocked=contestant == "blocked"))


@command
def run(config: BlockedConfig) -> Outcome:
    """Measure by the number of positions."""
    metrics, lengths = dict[str, float](), config.lengths
    for length in progress(lengths, "length"):
        names = [name for name in CONTESTANTS if name not in DENSE or length <= config.dense_up_to]
        metrics |= measure(f"{length}_positions", make_step, names, length, rounds=config.rounds)
    figure = growth_figure(metrics, "positions", lengths, STYLES, slopes={1: "--", 2: ":"}, start=min(lengths))
    for axis in figure.axes:
        axis.set_xticks(sorted(lengths), [str(length) for length in sorted(lengths)])
        axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    sizes = {f"{length}_positions": {"positions": str(length)} for length in lengths}
    return Outcome(
        metrics=metrics,
        rows=rows_by_contestant(metrics, sizes, CONTESTANTS),
        name="blocked_attention",
        title="Blocked attention",
        reference="scaled_dot_product_attention's",
        text=f"""\
Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, {HEADS} heads of
width {WIDTH}, learned concentration: the library's dense and blocked paths, and "naive dense" as a user would write it.
Beside them torch's softmax attention of the same shapes, without anything Bayesian. Medians of {config.rounds}
interleaved rounds, ratios to torch's softmax attention in the same round; memory at the peak beyond that before, each
in a fresh process.""",
        figure=figure,
        caption="Time and peak memory against the number of positions",
    )
