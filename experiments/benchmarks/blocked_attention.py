"""One attention layer between free queries, keys and values: blocked and dense, by the number of positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import scaled_dot_product_attention

from experiments.benchmarks.measuring import Benchmark, training_step
from experiments.files import UserError
from pyro_attention import AttentionELBO, AttentionGuide, ContextualGammaPrior, Dense, LatentAttention, Weibull
from pyro_attention.blocked import attend_blocked
from pyro_attention.blocked.ops.fused_attention import unfused
from pyro_attention.families.key_network import KeyNetwork

CONCENTRATION = 10.0
SOFTMAX, DENSE, NAIVE, BLOCKWISE = "scaled_dot_product_attention", "dense", "naive dense", "blocked"


@dataclass(frozen=True)
class Sizes:
    """Positions, heads and their width; batch 1."""

    length: int
    heads: int = 2
    width: int = 32
    dtype: torch.dtype = torch.float32


class SoftmaxLayer(nn.Module):
    """Torch's softmax attention of ``[3, 1, H, N, D]``; called, it gives the mean of squares of the result."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Parameter(vectors)

    def forward(self) -> Tensor:
        return scaled_dot_product_attention(*self.vectors).square().mean(dtype=torch.float32)


class LatentLayer(PyroModule):
    """The same with latent weights: a Pyro model that is observed through the mean of squares."""

    def __init__(self, vectors: Tensor, *, blocked: bool) -> None:
        super().__init__()
        self.vectors, self.blocked = nn.Parameter(vectors), blocked
        self.attention = LatentAttention("attention", ContextualGammaPrior(vectors.size(-1)).to(vectors.device))

    def forward(self) -> None:
        queries, keys, values = self.vectors
        queries = queries / math.sqrt(queries.size(-1))
        with pyro.plate("batch", len(queries), dim=-1):
            if self.blocked:
                output = attend_blocked(self.attention, queries, keys, values)
            else:
                output = self.attention(queries @ keys.mT, values, keys=keys)
        pyro.factor("output", -output.context.square().mean(dtype=torch.float32))


class NaiveLayer(nn.Module):
    """The same as a user would write it: Weibull weights, and torch's distributions for the KL."""

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


def make_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor] | None:
    """Forward and backward of a loss, which is returned: the negative ELBO, or for softmax attention its likelihood.

    The posterior is Weibull with a learned concentration. Layers whose memory grows as the square of the length stop at
    8192 positions.

    Raises:
        UserError: There is a GPU on which attention is not fused.
    """
    if contestant in (DENSE, NAIVE) and sizes.length > 8192:
        return None
    torch.manual_seed(0)
    vectors = torch.randn(3, 1, sizes.heads, sizes.length, sizes.width, dtype=sizes.dtype)
    if vectors.is_cuda and (reason := unfused(*vectors)) is not None:
        raise UserError(f"attention of width {sizes.width} in {sizes.dtype} is not fused on this GPU: {reason}")
    if contestant == SOFTMAX:
        return training_step(SoftmaxLayer(vectors), optimizer=None)
    if contestant == NAIVE:
        return training_step(NaiveLayer(vectors), optimizer=None)
    model = LatentLayer(vectors, blocked=contestant == BLOCKWISE)
    family = Weibull(CONCENTRATION, learnable=True).to(vectors.device)
    return training_step(AttentionELBO()(model, AttentionGuide(model, family)), optimizer=None)


BLOCKED = Benchmark(
    title="Blocked attention",
    text="Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, 2 heads of width "
    '32, learned concentration: the library\'s dense and blocked paths, and "naive dense" as a user would write it. '
    "Beside them torch's softmax attention of the same shapes, without anything Bayesian.",
    make_step=make_step,
    contestants=(SOFTMAX, DENSE, NAIVE, BLOCKWISE),
    sizes={f"{length} positions": Sizes(length) for length in (1024, 2048, 4096, 8192, 16384, 32768)},
)
FUSED = Benchmark(
    title="Fused attention",
    text="Forward and backward of Weibull attention with a contextual Gamma prior, its KL included, in fused kernels, "
    "and of torch's softmax attention: 16 heads of width 64 in bfloat16, by CUDA events.",
    make_step=make_step,
    contestants=(SOFTMAX, BLOCKWISE),
    sizes={f"{n} positions": Sizes(n, heads=16, width=64, dtype=torch.bfloat16) for n in (4096, 16384)},
    rounds=20,
    device="cuda",
)
