"""Training steps of a small self-attention classifier: ours against attention written without this library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import pyro
import torch
from pyro.distributions import Categorical
from torch import Tensor, nn

from experiments.benchmarks.self_attention_peers import (
    CONCENTRATION,
    Classifier,
    DropoutAttention,
    NaiveBayesianAttention,
    PlainLoss,
    ScaledDotProductAttention,
    Sizes,
    SoftmaxAttention,
    stock_pyro_loss,
)
from experiments.benchmarks.timing import Timing, interleave, training_step
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.families.base import Family

__all__ = ["LOSSES", "Contestant", "Sizes", "make_step", "run"]

Contestant = Literal[
    "softmax, hand-written",
    "scaled_dot_product_attention",
    "MC dropout",
    "soft, ours",
    "Weibull, ours",
    "naive Bayesian, hand-written",
    "stock Pyro, two passes",
]


class _LatentSelfAttention(nn.Module):
    """Our attention, with weights from a contextual Gamma prior."""

    def __init__(self, sizes: Sizes, name: str) -> None:
        super().__init__()
        prior = ContextualGammaPrior(sizes.width // sizes.heads)
        self.attention = MultiheadAttention(sizes.width, sizes.heads, name=name, prior=prior)

    def forward(self, x: Tensor) -> Tensor:
        context: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return context


class _Model(nn.Module):
    """The classifier with latent attention, and its labels."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.network = Classifier(sizes, partial(_LatentSelfAttention, sizes))

    def forward(self, x: Tensor, labels: Tensor) -> None:
        with pyro.plate("batch", len(x)):
            pyro.sample("labels", Categorical(logits=self.network(x)), obs=labels)


def _ours(family: Family, sizes: Sizes) -> nn.Module:
    model = _Model(sizes)
    loss: nn.Module = AttentionELBO()(model, AttentionGuide(model, family))
    return loss


def _plain(attention: Callable[[Sizes], nn.Module], sizes: Sizes) -> nn.Module:
    return PlainLoss(Classifier(sizes, lambda _: attention(sizes)))


# From the sizes to a loss of inputs [B, N, D] and labels [B].
LOSSES: dict[Contestant, Callable[[Sizes], nn.Module]] = {
    "softmax, hand-written": partial(_plain, SoftmaxAttention),
    "scaled_dot_product_attention": partial(_plain, ScaledDotProductAttention),
    "MC dropout": partial(_plain, DropoutAttention),
    "soft, ours": partial(_ours, Soft()),
    "Weibull, ours": partial(_ours, Weibull(CONCENTRATION)),
    "naive Bayesian, hand-written": partial(_plain, NaiveBayesianAttention),
    "stock Pyro, two passes": stock_pyro_loss,
}


def make_step(contestant: Contestant, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and Adam of a contestant; the step returns the loss."""
    torch.manual_seed(0)
    x = torch.randn(sizes.batch, sizes.length, sizes.width)
    labels = torch.randint(sizes.classes, (sizes.batch,))
    return training_step(LOSSES[contestant](sizes), x, labels)


def run(*, rounds: int = 50, sizes: Sizes | None = None) -> dict[str, Timing]:
    """Time the contestants; ratios are to softmax attention written by hand."""
    steps = {name: make_step(name, Sizes() if sizes is None else sizes) for name in get_args(Contestant)}
    return interleave(steps, rounds=rounds)
