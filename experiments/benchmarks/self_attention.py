"""Training steps of self-attention: ours against attention written without this library, and by normalizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention

from experiments.benchmarks.measuring import Benchmark, training_step
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    DoublyNormalized,
    Hybrid,
    MultiheadAttention,
    Soft,
    Softmax,
    Weibull,
)
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.normalizers import Normalizer

CONCENTRATION, DROPOUT = 10.0, 0.1
BY_HAND, FUSED, MC_DROPOUT = "softmax, hand-written", "scaled_dot_product_attention", "MC dropout"
NAIVE, STOCK = "naive Bayesian, hand-written", "stock Pyro, two passes"
OURS = {"soft, ours": Soft(), "Weibull, ours": Weibull(CONCENTRATION)}
CONTESTANTS = (BY_HAND, FUSED, MC_DROPOUT, *OURS, NAIVE, STOCK)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the classifier and its batch."""

    batch: int = 32
    length: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2
    classes: int = 2
    guide: str = "soft"  # of the layers by normalizer


class PeerAttention(nn.Module):
    """Multi-head attention of a contestant as it is written without this library.

    The Bayesian ones have Weibull weights S with mean softmax(scores), and a contextual Gamma prior, for every query
    and key. By hand, as one writes it down, the KL from torch's distributions evaluates lgamma of the prior at every
    query and key, though it depends on the key alone. With stock Pyro S is the value of a sample site.
    """

    def __init__(self, contestant: str, sizes: Sizes, name: str) -> None:
        super().__init__()
        self.contestant, self.heads, self.name = contestant, sizes.heads, name
        self.in_guide, self.kl = False, torch.zeros(())
        self.query, self.key, self.value, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(4))
        if contestant in (NAIVE, STOCK):
            self.prior = KeyNetwork(sizes.width // sizes.heads)

    def forward(self, *vectors: Tensor, **_: bool) -> tuple[Tensor]:
        layers = self.query, self.key, self.value
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in zip(layers, vectors, strict=True))
        return (self.out(self._mix(q, k, v).transpose(1, 2).flatten(-2)),)

    def _mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Weighted sums of the values ``[B, heads, N, D / heads]``."""
        if self.contestant == FUSED:
            return scaled_dot_product_attention(q, k, v)
        weights = (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1)
        if self.contestant == MC_DROPOUT:  # random weights without a posterior
            weights = dropout(weights, DROPOUT)
        elif self.contestant != BY_HAND:
            weights = self._sample(weights / math.gamma(1 + 1 / CONCENTRATION), k)
            weights = weights / weights.sum(-1, keepdim=True)
        return weights @ v

    def _sample(self, scale: Tensor, k: Tensor) -> Tensor:
        sample: Tensor
        if self.in_guide:
            sample = pyro.sample(self.name, dist.Weibull(scale, CONCENTRATION).to_event(3))
            return sample
        prior = self.prior(k, Dense()).exp().expand_as(scale)
        if self.contestant == STOCK:
            sample = pyro.sample(self.name, dist.Gamma(prior, 1.0).to_event(3))
            return sample
        posterior = TorchWeibull(scale, torch.full_like(scale, CONCENTRATION), validate_args=False)
        self.kl = kl_divergence(posterior, Gamma(prior, torch.ones_like(scale), validate_args=False)).sum()
        return posterior.rsample()


class Classifier(nn.Module):
    """Transformer encoder, mean over positions, linear classifier: logits ``[B, classes]`` of ``[B, N, D]``.

    Our attention has weights from a contextual Gamma prior.
    """

    def __init__(self, contestant: str, sizes: Sizes) -> None:
        super().__init__()
        width, hidden, names = sizes.width, 4 * sizes.width, [f"layers.{i}" for i in range(sizes.layers)]
        self.attention = nn.ModuleList()
        for name in names:
            if contestant in OURS:
                prior = ContextualGammaPrior(width // sizes.heads)
                self.attention.append(MultiheadAttention(width, sizes.heads, name=name, prior=prior))
            else:
                self.attention.append(PeerAttention(contestant, sizes, name))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in names
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in 2 * names)
        self.out = nn.Linear(width, sizes.classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            x = self.norms[2 * i](x + attention(x, x, x, need_weights=False)[0])
            x = self.norms[2 * i + 1](x + feed_forward(x))
        logits: Tensor = self.out(x.mean(1))
        return logits


class _PlainLoss(nn.Module):
    """Cross entropy of a classifier and the KL its attention layers leave behind, summed over the batch."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy(self.network(x), labels, reduction="sum")
        layers: Iterable[Any] = self.network.attention
        return loss + sum(layer.kl for layer in layers)


class _Model(nn.Module):
    """A classifier and its labels as a Pyro model; stock Pyro's guide runs the whole network, too."""

    def __init__(self, network: Classifier, *, in_guide: bool = False) -> None:
        super().__init__()
        self.network, self.in_guide = network, in_guide

    def forward(self, x: Tensor, labels: Tensor) -> None:
        layers: Iterable[Any] = self.network.attention
        for layer in layers:
            layer.in_guide = self.in_guide
        with pyro.plate("batch", len(x)):
            logits = self.network(x)
            if not self.in_guide:
                pyro.sample("labels", dist.Categorical(logits=logits), obs=labels)


def make_loss(contestant: str, sizes: Sizes) -> nn.Module:
    """The loss of inputs ``[B, N, D]`` and labels ``[B]``.

    The KL of Weibull and Gamma of stock Pyro is the one that this library registers: torch and Pyro have none and
    would sample it.
    """
    network = Classifier(contestant, sizes)
    model: nn.Module = _Model(network)
    loss: nn.Module = _PlainLoss(network)
    if contestant in OURS:
        loss = AttentionELBO()(model, AttentionGuide(model, OURS[contestant]))
    elif contestant == STOCK:
        loss = TraceMeanField_ELBO()(model, _Model(network, in_guide=True))
    return loss


def make_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and Adam of a contestant; the step returns the loss."""
    torch.manual_seed(0)
    x = torch.randn(sizes.batch, sizes.length, sizes.width)
    labels = torch.randint(sizes.classes, (sizes.batch,))
    return training_step(make_loss(contestant, sizes), x, labels)


CLASSIFIERS = Benchmark(
    title="Self-attention",
    text="Training steps of a two-layer transformer classifier: batch 32, 64 positions, width 128, 4 heads.",
    make_step=make_step,
    contestants=CONTESTANTS,
    sizes={"32 x 64 positions": Sizes()},
    rounds=30,
    memory=False,
)

# By normalizer

KINDS: dict[str, Callable[[int], Normalizer]] = {
    "softmax": lambda _: Softmax(),
    "doubly normalised": lambda _: DoublyNormalized(),
    "hybrid": Hybrid,
}


class _Normalized(PyroModule):
    """One layer, observed through the mean square of its output."""

    def __init__(self, normalizer: Normalizer, sizes: Sizes) -> None:
        super().__init__()
        self.layer = MultiheadAttention(sizes.width, sizes.heads, normalizer=normalizer)

    def forward(self, x: Tensor) -> None:
        with pyro.plate("batch", len(x)):
            context = self.layer(x, x, x, need_weights=False)[0]
            pyro.factor("output", -context.square().sum((-1, -2)))


def make_normalized_step(contestant: str, sizes: Sizes) -> Callable[[], Tensor]:
    """Forward, backward and Adam through guide and ELBO; the step returns the loss."""
    torch.manual_seed(0)
    x = torch.randn(sizes.batch, sizes.length, sizes.width)
    model = _Normalized(KINDS[contestant](sizes.heads), sizes)
    family = Soft() if sizes.guide == "soft" else Weibull()
    return training_step(AttentionELBO()(model, AttentionGuide(model, family)), x)


NORMALIZERS = Benchmark(
    title="Normalizers of self-attention",
    text="Training steps of one self-attention layer, batch 4, width 256, 4 heads, by guide and length n.",
    make_step=make_normalized_step,
    contestants=tuple(KINDS),
    sizes={
        f"{guide}, n = {length}": Sizes(4, length, 256, guide=guide)
        for guide in ("soft", "Weibull")
        for length in (64, 128, 256, 512)
    },
    rounds=10,
    memory=False,
)
