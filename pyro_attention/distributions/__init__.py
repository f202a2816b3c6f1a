"""Distributions over log attention weights, their moments and their closed-form KL."""

from pyro_attention.distributions.attention import AttentionDistribution, Proposal
from pyro_attention.distributions.base import ContinuousWeights, LogWeights
from pyro_attention.distributions.blocked import BlockedPosterior, BlockedPrior
from pyro_attention.distributions.blocked_kl import kl_blocked
from pyro_attention.distributions.blocked_value import BlockedValue
from pyro_attention.distributions.kl import kl_log_weights, kl_weibull_gamma
from pyro_attention.distributions.weights import GammaWeights, LogNormalWeights, WeibullWeights

__all__ = [
    "AttentionDistribution",
    "BlockedPosterior",
    "BlockedPrior",
    "BlockedValue",
    "ContinuousWeights",
    "GammaWeights",
    "LogNormalWeights",
    "LogWeights",
    "Proposal",
    "WeibullWeights",
    "kl_blocked",
    "kl_log_weights",
    "kl_weibull_gamma",
]
