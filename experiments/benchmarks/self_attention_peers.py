"""A small self-attention classifier, and its attention layers as they are written without this library."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor, nn
from torch.distributions import Gamma, Weibull, kl_divergence
from torch.nn.functional import cross_entropy, dropout, scaled_dot_product_attention

from pyro_attention import Dense
from pyro_attention.families.key_network import KeyNetwork

__all__ = [
    "CONCENTRATION",
    "Classifier",
    "DropoutAttention",
    "NaiveBayesianAttention",
    "PlainLoss",
    "ScaledDotProductAttention",
    "Sizes",
    "SoftmaxAttention",
    "stock_pyro_loss",
]

CONCENTRATION, DROPOUT = 10.0, 0.1


@dataclass(frozen=True)
class Sizes:
    """Sizes of the classifier and its batch."""

    batch: int = 32
    length: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2
    classes: int = 2


class Classifier(nn.Module):
    """Transformer encoder, mean over positions, linear classifier: logits ``[B, classes]`` of ``[B, N, D]``.

    ``attention`` makes a layer's attention, a module from ``[B, N, D]`` to the same shape, of its name.
    """

    def __init__(self, sizes: Sizes, attention: Callable[[str], nn.Module]) -> None:
        super().__init__()
        width, hidden = sizes.width, 4 * sizes.width
        self.attention = nn.ModuleList(attention(f"layers.{i}") for i in range(sizes.layers))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in range(sizes.layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * sizes.layers))
        self.out = nn.Linear(width, sizes.classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, (attention, feed_forward) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            x = self.norms[2 * i](x + attention(x))
            x = self.norms[2 * i + 1](x + feed_forward(x))
        logits: Tensor = self.out(x.mean(1))
        return logits


class PlainLoss(nn.Module):
    """Cross entropy of a classifier and the KL its attention layers leave behind, summed over the batch."""

    def __init__(self, network: Classifier) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        loss = cross_entropy(self.network(x), labels, reduction="sum")
        for layer in self.network.attention:
            if isinstance(layer, NaiveBayesianAttention):
                loss = loss + layer.kl
        return loss


class SoftmaxAttention(nn.Module):
    """Multi-head softmax attention in plain torch; subclasses mix the values in another way."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value, self.out = (nn.Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed: Tensor = self.out(self.mix(q, k, v).transpose(1, 2).flatten(-2))
        return mixed

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Weighted sums of the values ``[B, heads, N, D / heads]``."""
        return self.weights(q, k) @ v

    @staticmethod
    def weights(q: Tensor, k: Tensor) -> Tensor:
        """Softmax weights ``[B, heads, N, N]``."""
        return (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)


class ScaledDotProductAttention(SoftmaxAttention):
    """The same by torch's own function, which on a GPU, and on newer CPUs, is fused."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v)


class DropoutAttention(SoftmaxAttention):
    """MC dropout: random weights without a posterior."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dropout(self.weights(q, k), DROPOUT) @ v


class _WeibullAttention(SoftmaxAttention):
    """Weibull weights S with mean softmax(scores), and a contextual Gamma prior, for every query and key."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.prior = KeyNetwork(sizes.width // sizes.heads)

    def scale(self, q: Tensor, k: Tensor) -> Tensor:
        return self.weights(q, k) / math.gamma(1 + 1 / CONCENTRATION)

    def prior_concentration(self, scale: Tensor, k: Tensor) -> Tensor:
        return self.prior(k, Dense()).exp().expand_as(scale)


class NaiveBayesianAttention(_WeibullAttention):
    """Without Pyro, as one writes it down: sample S, divide by its sum, and the KL from torch's distributions.

    That evaluates lgamma of the prior at every query and key, though it depends on the key alone.
    """

    kl: Tensor

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = self.scale(q, k)
        posterior = Weibull(scale, torch.full_like(scale, CONCENTRATION), validate_args=False)
        prior = Gamma(self.prior_concentration(scale, k), torch.ones_like(scale), validate_args=False)
        self.kl = kl_divergence(posterior, prior).sum()
        weights = posterior.rsample()
        return weights / weights.sum(-1, keepdim=True) @ v


class _StockPyroAttention(_WeibullAttention):
    """A sample site whose value is S; :class:`_StockPyro` says whether it has the posterior or the prior."""

    in_guide: bool

    def __init__(self, sizes: Sizes, name: str) -> None:
        super().__init__(sizes)
        self.name = name

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scale = self.scale(q, k)
        if self.in_guide:
            distribution = dist.Weibull(scale, CONCENTRATION)
        else:
            distribution = dist.Gamma(self.prior_concentration(scale, k), 1.0)
        weights = pyro.sample(self.name, distribution.to_event(3))
        return weights / weights.sum(-1, keepdim=True) @ v


class _StockPyro(nn.Module):
    """Model or guide: each of them runs the whole network."""

    def __init__(self, network: Classifier, *, in_guide: bool) -> None:
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


def stock_pyro_loss(sizes: Sizes) -> nn.Module:
    """Negative ELBO by Pyro alone: a model, a guide, two passes.

    The KL of Weibull and Gamma is the one that this library registers: torch and Pyro have none and would sample it.
    """
    network = Classifier(sizes, lambda name: _StockPyroAttention(sizes, name))
    model, guide = _StockPyro(network, in_guide=False), _StockPyro(network, in_guide=True)
    loss: nn.Module = TraceMeanField_ELBO()(model, guide)
    return loss
