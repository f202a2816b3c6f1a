r"""Closed-form KL: one rule for every pair, because every prior is linear in a few moments of the posterior.

.. math:: \mathrm{KL}(q \| p) = -\mathrm{E}_q[\log p] - \mathrm{H}[q]

Registered with :func:`torch.distributions.kl_divergence`, together with the textbook pair of torch's own classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Gamma, Weibull, register_kl

from pyro_attention.families.distribution import LogWeights
from pyro_attention.families.weights import EULER_GAMMA

__all__ = ["kl_log_weights", "kl_weibull_gamma"]


@register_kl(LogWeights, LogWeights)  # type: ignore[untyped-decorator]
def kl_log_weights(q: LogWeights, p: LogWeights) -> Tensor:
    """KL between two distributions over log weights, summed over the unmasked entries of the event.

    Args:
        q: Posterior; any family with moments.
        p: Prior; Gamma or LogNormal. The result has q's batch shape, in nats.

    Raises:
        NotImplementedError: p has no closed-form cross entropy (a Weibull prior).
        ValueError: The two have different event shapes.

    Example:
        >>> from pyro_attention import LogNormalWeights
        >>> p = LogNormalWeights(torch.zeros(1, 1, 4), torch.tensor(1.0))
        >>> kl_log_weights(p, p).item()
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, equation (4) and below.
    """
    if q.event_shape != p.event_shape:
        raise ValueError(f"KL between event shapes {tuple(q.event_shape)} and {tuple(p.event_shape)}")
    return p.cross_entropy(q) - q.entropy()


@register_kl(Weibull, Gamma)  # type: ignore[untyped-decorator]
def kl_weibull_gamma(q: Weibull, p: Gamma) -> Tensor:
    r"""KL of torch's Weibull(scale, concentration) from torch's Gamma(concentration, rate), per entry.

    .. math:: \gamma a/k - a\log\lambda + \log k + b\lambda\Gamma(1+1/k) - \gamma - 1 - a\log b + \log\Gamma(a)

    Example:
        >>> kl = kl_weibull_gamma(Weibull(torch.tensor(1.0), torch.tensor(1.0)), Gamma(1.0, 1.0))
        >>> round(kl.item(), 6)
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """
    k, a, b = q.concentration, p.concentration, p.rate
    expected = (q.scale.log() + torch.lgamma(1 + 1 / k)).exp()
    return (
        EULER_GAMMA * a / k - a * q.scale.log() + k.log() + b * expected
        - EULER_GAMMA - 1 - a * b.log() + torch.lgamma(a)
    )  # fmt: skip
