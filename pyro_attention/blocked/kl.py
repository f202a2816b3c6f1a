r"""Closed-form KL of blocked attention from sums that are linear in queries, keys and log-sum-exps of the rows.

With scores :math:`\Phi_{ij} = q_i \cdot k_j - \ell_i`, every term of the KL of one key needs only sums over the queries
that see it: :math:`\sum_i q_i` and :math:`\sum_i \ell_i`. The KL from other priors takes a second pass over the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import register_kl

from pyro_attention._checks import as_float
from pyro_attention.blocked.distributions import BlockedPosterior, BlockedPrior
from pyro_attention.families.distribution import LogWeights, kl_log_weights
from pyro_attention.families.gamma import GammaWeights
from pyro_attention.ops.special import lgamma_exp

__all__ = ["kl_blocked"]


@register_kl(BlockedPosterior, BlockedPrior)
def kl_blocked(q: BlockedPosterior, p: BlockedPrior) -> Tensor:
    """KL summed over all pairs that may attend: q's batch shape, in nats; memory grows as the lengths.

    Args:
        q: Posterior of a blocked site.
        p: Its prior.

    Example:
        >>> from pyro_attention import FixedGammaPrior, Weibull
        >>> from pyro_attention.blocked.distributions import Pairs
        >>> pairs = Pairs(torch.zeros(1, 3, 2), torch.zeros(1, 1, 2))
        >>> p = BlockedPrior(FixedGammaPrior(), pairs, per_query=False, site="attention")
        >>> round(kl_blocked(Weibull(concentration=1.0).posterior(p), p).item(), 5)
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, equation (4) and below.
    """
    relative, prior = q.relative, p.parameters
    assert relative is not None  # a point mass has no KL
    # an autocast region would redo the products in half precision
    with torch.autocast(q.pairs.queries.device.type, enabled=False):
        if not isinstance(prior, GammaWeights) or (prior.log_rate.dim() and prior.log_rate.size(-1) != 1):
            return q.sum_windows(lambda rows: kl_log_weights(q.window(rows), p.window(rows)))
        cross = _gamma(q, relative, prior)
        return cross - _sum(q, q.pairs.counts() * relative.entropy_per_weight)


def _sum(q: BlockedPosterior, term: Tensor) -> Tensor:
    """Sum of ``[..., H or 1, 1, N]`` over heads and keys: the batch shape."""
    return term.expand(*q.batch_shape, q.event_shape[0], 1, -1).sum((-3, -2, -1))


def _gamma(q: BlockedPosterior, relative: LogWeights, p: GammaWeights) -> Tensor:
    r""":math:`\sum \log\Gamma(a) - a\,(\mathrm{E}_q[\log S] + \log b) + b\,\mathrm{E}_q[S]`."""
    shift = relative.mean + p.log_rate
    constant = lgamma_exp(p.log_concentration) - p.concentration * shift
    expected = (relative.log_expected_weight + p.log_rate).exp() * _expected_sums(q)
    return _sum(q, q.pairs.counts() * constant - p.concentration * _score_sums(q)) + _sum(q, expected)


def _score_sums(q: BlockedPosterior) -> Tensor:
    """Sum of the scores over the queries that see each key, ``[..., H, 1, N]``."""
    pairs = q.pairs
    sums = (pairs.sum_over_queries(as_float(pairs.queries)) * as_float(pairs.keys)).sum(-1, keepdim=True)
    if pairs.normalize:
        sums = sums - pairs.sum_over_queries(q.log_sums.unsqueeze(-1))
    return sums.transpose(-1, -2)


def _expected_sums(q: BlockedPosterior) -> Tensor:
    """Sum over queries and keys of the exponentials of the scores, ``[..., H or 1, 1, 1]``."""
    seeing = q.pairs.seeing()
    # one for each query that sees a key, if these are normalised
    total = seeing if q.pairs.normalize else q.log_sums.exp().where(seeing, 0)
    queries = q.event_shape[1]
    return as_float(total).expand(*total.shape[:-1], queries).sum(-1)[..., None, None]
