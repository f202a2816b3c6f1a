"""One attention layer between free queries, keys and values, which are all parameters."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pyro
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import Gamma, kl_divergence
from torch.distributions import Weibull as TorchWeibull
from torch.nn.functional import scaled_dot_product_attention

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    LatentAttention,
    Weibull,
)
from pyro_attention.blocked import attend_blocked
from pyro_attention.families.key_network import KeyNetwork

__all__ = ["LatentLayer", "NaiveLayer", "SoftmaxLayer", "weibull_loss"]

CONCENTRATION = 10.0


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
                output = self.attention(queries @ keys.transpose(-1, -2), values, keys=keys)
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
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.size(-1))
        scale = scores.softmax(-1) / torch.lgamma(1 + 1 / k).exp()
        prior = self.network(keys, Dense()).exp()
        weights = scale * torch.empty_like(scale).exponential_() ** (1 / k)
        context = weights / weights.sum(-1, keepdim=True) @ values
        posterior = TorchWeibull(scale, k, validate_args=False)
        kl = kl_divergence(posterior, Gamma(prior.expand_as(scale), 1.0, validate_args=False))
        return context.square().mean() + kl.sum()


def weibull_loss(model: LatentLayer) -> nn.Module:
    """The negative ELBO under a Weibull posterior with a learned concentration."""
    family = Weibull(CONCENTRATION, learnable=True).to(model.vectors.device)
    loss: nn.Module = AttentionELBO()(model, AttentionGuide(model, family))
    return loss
