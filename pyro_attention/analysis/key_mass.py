"""The attention that keys get from all queries together, and how hybrid attention divides its weight."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_attention._checks import as_float
from pyro_attention.analysis.inputs import ROUNDING, check_floats
from pyro_attention.attention import LatentAttention
from pyro_attention.edge_list import EdgeList
from pyro_attention.layout import Dense, Layout
from pyro_attention.over_queries import Hybrid

__all__ = ["hybrid_weights", "key_mass"]


def key_mass(weights: Tensor, *, layout: Layout | None = None) -> Tensor:
    r"""Return the mass of every key, :math:`\sum_i W_{ij}`; one of less than 1e-8, say, is explained away.

    Args:
        weights: ``[..., H, M, N]`` dense or ``[..., E, H]`` on a graph, as from :func:`sample_posterior`.
        layout: Mask and structure; dense without a mask by default.

    Returns:
        ``[..., H, N]``; NaN for keys that no query may attend to.

    Raises:
        TypeError: Weights are no floats.
        ValueError: Weights outside [0, 1] or NaN, weights that do not fit the layout, or queries that lie in a plate.

    Example:
        >>> key_mass(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
        tensor([[2., 0.]])

    Source: Ding et al. (2020), Attention that does not Explain Away, definition 1.
    """
    layout = Dense() if layout is None else layout
    check_floats("weights", weights)
    layout.check(weights, site="weights")
    weights = as_float(weights.detach())
    if not ((weights >= 0) & (weights <= 1 + ROUNDING)).all():
        raise ValueError("weights have entries outside [0, 1] or NaN; expected normalized weights, not log weights")
    allowed = torch.ones_like(weights) if layout.mask is None else layout.mask.expand(weights.shape).to(weights)
    return _over_queries(weights, layout).where(_over_queries(allowed, layout) > 0, math.nan)


def _over_queries(weights: Tensor, layout: Layout) -> Tensor:
    """Return the sum over the queries for every key, ``[..., H, N]``."""
    if isinstance(layout, EdgeList):
        return layout.sources.sum(weights).transpose(-1, -2)
    if layout.event_dim == 2:
        raise ValueError("event_dim is 2, so nothing runs over queries; expected Dense(event_dim=3)")
    return weights.sum(-2)


def hybrid_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the mixing weights of every :class:`Hybrid` normalizer; collect them while training for trajectories.

    Args:
        module: A model, or anything that holds one, whose layers have names of their own (:func:`name_sites`).

    Returns:
        Site name to the share of doubly normalized attention in each head, ``[heads]``, detached, on the CPU.

    Example:
        >>> from pyro_attention import MultiheadAttention
        >>> hybrid_weights(MultiheadAttention(4, 2, name="encoder.0", normalizer=Hybrid(2, initial=0.1)))
        {'encoder.0': tensor([0.1000, 0.1000])}

    Source: Ding et al. (2020), Attention that does not Explain Away, figures 3 to 5.
    """
    return {
        layer.name: layer.normalizer.mixing_weights.cpu()
        for layer in module.modules()
        if isinstance(layer, LatentAttention) and isinstance(layer.normalizer, Hybrid)
    }
