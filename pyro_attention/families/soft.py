"""Soft: the point mass at the posterior mean."""

from __future__ import annotations

from pyro.distributions import Delta, TorchDistribution

from pyro_attention.attention_call import AttentionCall
from pyro_attention.families.base import FAMILIES, Family
from pyro_attention.families.distribution import AttentionDistribution

__all__ = ["Soft"]


@FAMILIES.register("soft")
class Soft(Family):
    r"""Point mass at the posterior mean: ordinary deterministic attention, without a prior term, under every prior.

    Under an alignment prior that is soft attention, :math:`\mathrm{E}[z]`.

    Example:
        >>> Soft()
        Soft()
    """

    kind = None
    has_prior_term = False

    def prior(self, prior: AttentionDistribution) -> AttentionDistribution:
        return prior.over_weights

    def posterior(self, call: AttentionCall, prior: AttentionDistribution) -> TorchDistribution:
        value = prior.soft_value(call)
        return Delta(value, event_dim=value.dim() - len(prior.batch_shape))
