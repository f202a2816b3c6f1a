"""Attentive neural process, which predicts values at target points by attention to context points."""

from __future__ import annotations

import math
from typing import Any, Literal

import pyro
import torch
from pyro.distributions import Normal
from torch import Tensor, nn

from pyro_attention import LatentAttention
from pyro_attention.families.base import Prior

WIDTH = 64  # width of all layers
HEADS = 8  # heads of the attention


def mlp(width: int, out: int = WIDTH) -> nn.Sequential:
    """Build a network with one hidden layer."""
    return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, out))


class NeuralProcess(nn.Module):
    r"""Attentive neural process with its deterministic path and latent attention.

    .. math:: p(y, S \mid x) = p(S \mid \Phi)\, \prod_m \mathrm{Normal}(y_m; \mu(c_m, z_m), \sigma(c_m, z_m)), \qquad
              c_m = \sum_n W_{mn} v(x_n, y_n)

    The scores :math:`\Phi` compare the M target points z with the N context points x. A function has the weights of all
    heads as one event (heads, targets, context points) of the site ``context``, in the plate ``functions``.

    Args:
        scores: "product", scaled dot products of query and key; "distance", minus half the squared distance of the
            points, divided by the squared bandwidth of each head; "heads", products normalized over the heads.
        prior: Prior of the attention.

    Source: Kim et al. (2019), Attentive Neural Processes, section 3.
    """

    def __init__(self, scores: Literal["product", "distance", "heads"], prior: Prior) -> None:
        super().__init__()
        self.scores, self.attention = scores, LatentAttention("context", prior)
        self.place, self.pair, self.decoder = mlp(1), mlp(2), mlp(2 * WIDTH, 2)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.log_bandwidth = nn.Parameter(torch.linspace(math.log(0.05), math.log(0.5), HEADS).view(HEADS, 1, 1))

    def forward(self, x: Tensor, y: Tensor, z: Tensor, target: Tensor) -> Tensor:
        """Observe the values at the target points, and return their log likelihood.

        Args:
            x: Context points ``[B, N]``.
            y: Their values ``[B, N]``.
            z: Target points ``[B, M]``.
            target: Their values ``[B, M]``.

        Returns:
            ``[..., B, M]``.
        """
        contexts, targets = (self.place(points.unsqueeze(-1)) for points in (x, z))
        pairs = self.pair(torch.stack([x, y], -1))
        q, k, v = (
            layer(inputs).unflatten(-1, (HEADS, -1)).transpose(-3, -2)
            for layer, inputs in ((self.query, targets), (self.key, contexts), (self.value, pairs))
        )
        if self.scores == "distance":
            distance = (z.unsqueeze(-1) - x.unsqueeze(-2)).unsqueeze(-3)
            scores = -(distance / self.log_bandwidth.exp()).square() / 2
        else:
            scores = q @ k.mT / math.sqrt(q.size(-1))
        if self.scores == "heads":
            scores = scores.log_softmax(-3)
        with pyro.plate("functions", len(y), dim=-1):
            context = self.attention(scores, v, keys=k, queries=q).context.transpose(-3, -2).flatten(-2)
            read = self.out(context)
            mean, width = self.decoder(torch.cat([read, targets.expand_as(read)], -1)).unbind(-1)
            likelihood: Any = Normal(mean, 0.1 + 0.9 * nn.functional.softplus(width))
            pyro.sample("y", likelihood.to_event(1), obs=target)
        log_prob: Tensor = likelihood.log_prob(target)
        return log_prob
