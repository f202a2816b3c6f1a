"""Soft: the point mass at the posterior mean."""

from __future__ import annotations

from typing import Any

from pyro.distributions import Delta, Distribution

from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.families.log_weights import LogWeights

__all__ = ["Soft"]


@FAMILIES.register("soft")
class Soft(Family):
    """The point mass at the posterior mean: ordinary deterministic attention, without a prior term.

    Example:
        >>> Soft()
        Soft()
    """

    has_prior_term = False

    def posterior(self, prior: LogWeights, *_: Any, **__: Any) -> Distribution:
        return Delta(prior.soft_value, event_dim=len(prior.event_shape))
