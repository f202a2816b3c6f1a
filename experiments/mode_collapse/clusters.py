"""Two clusters of points under repeated self-attention, and equations (13) and (14) for how they approach each other.

Ding et al. (2020), Attention that does not Explain Away, appendix E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_attention import AttentionGuide, DoublyNormalized, FixedGammaPrior, LatentAttention, Soft, Softmax, Weibull
from pyro_attention.posterior.predictive import seeded

__all__ = ["ATTENTIONS", "Attention", "centre_distances", "clusters", "next_distance", "trajectory"]


@dataclass(frozen=True)
class Attention:
    """One kind of attention: doubly normalised instead of softmax, and with weights from a Weibull posterior."""

    doubly: bool
    stochastic: bool


ATTENTIONS = {
    "softmax": Attention(doubly=False, stochastic=False),
    "doubly normalised": Attention(doubly=True, stochastic=False),
    "softmax, Weibull": Attention(doubly=False, stochastic=True),
    "doubly normalised, Weibull": Attention(doubly=True, stochastic=True),
}


def clusters(sizes: tuple[int, int], distance: float, *, dim: int, deviation: float, seed: int = 0) -> Tensor:
    """Points of the first cluster, around the origin, and of the second: ``[first + second, dim]``, float64.

    They are drawn around centres at this distance, with this standard deviation in each dimension.
    """
    generator = torch.Generator().manual_seed(seed)
    points = deviation * torch.randn(sum(sizes), dim, generator=generator, dtype=torch.float64)
    points[sizes[0] :, 0] += distance
    return points


def trajectory(
    points: Tensor, attention: Attention, *, steps: int, concentration: float = 1.0, seed: int = 0
) -> Tensor:
    r"""Points after each self-attention, :math:`\Phi_{ij} = -\tfrac12 |x_i - x_j|^2`: ``[steps + 1, points, dim]``.

    There are no projections and no residual connections; the weights come from the library's layer and guide.

    The smaller the ``concentration`` of the Weibull posterior, the wider it is.
    """
    normalizer = DoublyNormalized() if attention.doubly else Softmax()
    layer = LatentAttention("attention", FixedGammaPrior(), normalizer=normalizer).double()

    def model(points: Tensor) -> Tensor:
        scores = -0.5 * torch.cdist(points, points).square()
        context: Tensor = layer(scores.unsqueeze(0), points.unsqueeze(0)).context
        return context.squeeze(0)

    family = Weibull(concentration) if attention.stochastic else Soft()
    guide = AttentionGuide(model, family.double())
    found = [points]
    with torch.no_grad(), seeded(seed):
        for _ in range(steps):
            found.append(guide.run(found[-1]).output)
    return torch.stack(found)


def centre_distances(points: Tensor, first: int) -> Tensor:
    """Distance between the means of the first points and of the others, for points ``[..., points, dim]``."""
    difference = points[..., :first, :].mean(-2) - points[..., first:, :].mean(-2)
    return difference.square().sum(-1).sqrt()


def next_distance(distance: float, sizes: tuple[int, int], *, doubly: bool) -> float:
    r"""Distance of two clusters without extent after one update.

    .. math:: D' = D\, \frac{1 - w^2}{(1 + r w)(1 + w / r)}, \qquad w = e^{-D^2/2}, \quad r = N_2 / N_1

    For doubly normalised attention r becomes :math:`r\,(1 + r w) / (w + r)`, which is nearer to 1.

    Example:
        >>> [round(next_distance(2.0, (500, 50), doubly=doubly), 3) for doubly in (False, True)]
        [0.823, 1.412]

    Source: Ding et al. (2020), Attention that does not Explain Away, equations (13) and (14).
    """
    w, r = math.exp(-0.5 * distance**2), sizes[1] / sizes[0]
    if doubly:
        r *= (1 + r * w) / (w + r)
    return distance * (1 - w**2) / ((1 + r * w) * (1 + w / r))
