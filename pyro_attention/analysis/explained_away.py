"""Keys that no query attends to, and how hybrid attention divides its weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float
from pyro_attention.analysis.inputs import ROUNDING, check_floats
from pyro_attention.attention import LatentAttention
from pyro_attention.edge_list import EdgeList
from pyro_attention.layout import Dense, Layout
from pyro_attention.over_queries import Hybrid

__all__ = ["ExplainedAway", "explained_away", "hybrid_weights"]


@dataclass(frozen=True)
class ExplainedAway:
    """Mass of every key: the attention that it gets from all queries together.

    Attributes:
        epsilon: A key of less mass is explained away.
        mass: ``[..., H, N]``; NaN for keys that no query may attend to.
        fraction: Fraction of keys explained away in each head, ``[H]``; NaN without any key.
    """

    epsilon: float
    mass: Tensor
    fraction: Tensor


def explained_away(weights: Tensor, *, layout: Layout | None = None, epsilon: float = 1e-8) -> ExplainedAway:
    r"""Mass of the keys, :math:`\sum_i W_{ij}`, and the fraction of them that is below epsilon.

    Args:
        weights: ``[..., H, M, N]`` dense or ``[..., E, H]`` on a graph, as from :func:`sample_posterior`.
        layout: Mask and structure; dense without a mask by default. Keys that no query may attend to do not count.
        epsilon: Positive. The paper's value is lost in our copy; it may have been this one.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Weights outside [0, 1] or NaN, weights that do not fit the layout, queries that lie in a plate, or
            an epsilon that is not positive.

    Example:
        >>> found = explained_away(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
        >>> found.mass.tolist(), found.fraction.tolist()
        ([[2.0, 0.0]], [0.5])

    Source: Ding et al. (2020), Attention that does not Explain Away, definition 1.
    """
    layout = Dense() if layout is None else layout
    check_floats("weights", weights)
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}, expected a positive number such as 1e-8")
    layout.check(weights, site="weights")
    weights = as_float(weights.detach())
    if not ((weights >= 0) & (weights <= 1 + ROUNDING)).all():
        raise ValueError("weights have entries outside [0, 1] or NaN; expected normalised weights, not log weights")
    allowed = torch.ones_like(weights) if layout.mask is None else layout.mask.expand(weights.shape).to(weights)
    visible = _mass(allowed, layout) > 0
    mass = _mass(weights, layout).where(visible, math.nan)
    others = [dim for dim in range(mass.dim()) if dim != mass.dim() - 2]
    return ExplainedAway(epsilon, mass, (mass < epsilon).sum(others) / visible.sum(others))


def _mass(weights: Tensor, layout: Layout) -> Tensor:
    """Sum over the queries for every key, ``[..., H, N]``."""
    if isinstance(layout, EdgeList):
        return layout.sources.sum(weights).transpose(-1, -2)
    if layout.event_dim == 2:
        raise ValueError("event_dim is 2, so nothing runs over queries; expected Dense(event_dim=3)")
    return weights.sum(-2)


def hybrid_weights(module: nn.Module) -> dict[str, Tensor]:
    """Mixing weights of every :class:`Hybrid` normalizer; collect them while training for their trajectories.

    Args:
        module: A model, or anything that holds one.

    Returns:
        Site name to the share of doubly normalised attention in each head, ``[heads]``, detached, on the CPU.

    Raises:
        ValueError: Two layers have one name.

    Example:
        >>> from pyro_attention import MultiheadAttention
        >>> hybrid_weights(MultiheadAttention(4, 2, name="encoder.0", normalizer=Hybrid(2, initial=0.1)))
        {'encoder.0': tensor([0.1000, 0.1000])}

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    weights = [
        (layer.name, layer.normalizer.mixing_weights.cpu())
        for layer in module.modules()
        if isinstance(layer, LatentAttention) and isinstance(layer.normalizer, Hybrid)
    ]
    found = dict(weights)
    if len(found) < len(weights):
        raise ValueError(
            f"{len(weights)} layers have the site names {', '.join(map(repr, found))}, expected a name for each; call "
            f"name_sites(model) first"
        )
    return found
