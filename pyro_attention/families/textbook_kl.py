"""Closed-form KL of torch's own Weibull, LogNormal and Gamma, for Pyro programs that sample weights themselves."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution, Gamma, LogNormal, Weibull, register_kl

from pyro_attention.families.weibull import EULER_GAMMA

__all__ = ["kl_textbook"]


class _Moments(NamedTuple):
    """Moments of S that the KL from a Gamma or LogNormal needs."""

    mean: Tensor  # E[log S]
    variance: Tensor  # Var[log S]
    expected: Tensor  # E[S]
    entropy: Tensor  # of log S


def _moments(q: Distribution) -> _Moments:
    if isinstance(q, Weibull):
        log_scale, k = q.scale.log(), q.concentration
        expected = (log_scale + torch.lgamma(1 + 1 / k)).exp()
        return _Moments(log_scale - EULER_GAMMA / k, math.pi**2 / (6 * k**2), expected, 1 + EULER_GAMMA - k.log())
    if isinstance(q, LogNormal):
        variance = q.scale.square()
        return _Moments(q.loc, variance, (q.loc + variance / 2).exp(), 0.5 * (2 * math.pi * math.e * variance).log())
    if isinstance(q, Gamma):
        a, log_rate = q.concentration, q.rate.log()
        entropy = a - a * torch.digamma(a) + torch.lgamma(a)
        return _Moments(torch.digamma(a) - log_rate, torch.polygamma(1, a), a / q.rate, entropy)
    raise TypeError(f"q is a {type(q).__name__}, expected torch's Weibull, LogNormal or Gamma")


@register_kl(Weibull, Gamma)
@register_kl(LogNormal, Gamma)
@register_kl(Weibull, LogNormal)
@register_kl(Gamma, LogNormal)
def kl_textbook(q: Distribution, p: Gamma | LogNormal) -> Tensor:
    r"""Return the KL of torch's Weibull, LogNormal or Gamma from torch's Gamma or LogNormal, per entry, in nats.

    Importing the package registers it with :func:`torch.distributions.kl_divergence`, so that a plain Pyro model gets
    the closed form under stock ``TraceMeanField_ELBO``, which draws otherwise. (Gamma from Gamma, and
    LogNormal from LogNormal, are torch's own.) The two are compared as distributions of :math:`\log S`:

    .. math:: -a\,\mathrm{E}[\log S] + b\,\mathrm{E}[S] - a\log b + \log\Gamma(a) - \mathrm{H}[\log S]
              \quad\text{or}\quad
              \log s + \tfrac12\log 2\pi + \frac{\mathrm{Var}[\log S] + (\mathrm{E}[\log S]-m)^2}{2s^2}
              - \mathrm{H}[\log S]

    Args:
        q: The posterior.
        p: The prior, Gamma(a, b) or LogNormal(m, s).

    Example:
        >>> one = torch.tensor(1.0)
        >>> round(torch.distributions.kl_divergence(Weibull(one, one), Gamma(one, one)).item(), 6)
        0.0

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3.2.
    """
    moments = _moments(q)
    if isinstance(p, Gamma):
        a, b = p.concentration, p.rate
        cross = b * moments.expected - a * (moments.mean + b.log()) + torch.lgamma(a)
    else:
        square = moments.variance + (moments.mean - p.loc).square()
        cross = p.scale.log() + 0.5 * math.log(2 * math.pi) + square / (2 * p.scale.square())
    return cross - moments.entropy
