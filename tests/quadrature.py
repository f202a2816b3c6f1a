"""The moments and the KL of log weights by quadrature, from textbook densities; shares nothing with the package."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import optimize
from scipy.special import gammaln

__all__ = ["log_density", "log_posterior", "reference_kl", "reference_moments"]


def log_density(family, first, second):
    """Log density of x = log S: that of S at e^x times the Jacobian e^x.

    Weibull (concentration, log scale), lognormal (location, scale) and gamma (concentration, rate).
    """
    if family == "weibull":
        return lambda x: math.log(first) + first * (x - second) - np.exp(first * (x - second))
    if family == "lognormal":
        return lambda x: -0.5 * ((x - first) / second) ** 2 - math.log(second) - 0.5 * math.log(2 * math.pi)
    log_rate = math.log(second)
    return lambda x: first * (x + log_rate) - np.exp(x + log_rate) - gammaln(first)


def log_posterior(family, spread, log_mean):
    """Log density of log S where ``E[S] = exp(log_mean)``; spread is the concentration, or a lognormal's scale."""
    if family == "weibull":
        return log_density(family, spread, log_mean - gammaln(1 + 1 / spread))
    if family == "lognormal":
        return log_density(family, log_mean - spread**2 / 2, spread)
    return log_density(family, spread, spread * math.exp(-log_mean))


def log_integral(exponent, start, width, factor=None):
    """Logarithm of the integral of ``exp(exponent(x))``; with a factor, the integral of ``exp(exponent(x)) factor(x)``.

    The exponent is concave. The window reaches to where it has fallen by 80; on a smooth function that vanishes at
    both ends the trapezoid rule converges exponentially.
    """
    mode = optimize.minimize_scalar(lambda x: -exponent(x), bracket=(start - width, start + width)).x
    top = exponent(mode)

    def edge(sign):
        far = width
        while top - exponent(mode + sign * far) < 80:
            far *= 2
        return optimize.brentq(lambda x: top - exponent(x) - 80, mode, mode + sign * far)

    x = np.linspace(edge(-1), edge(1), 20001)
    mass = np.exp(exponent(x) - top) * (x[1] - x[0])
    return top + math.log(mass.sum()) if factor is None else math.exp(top) * (mass * factor(x)).sum()


@cache
def reference_moments(family, spread, log_mean):
    """E[log S], E[(log S)^2], log E[S] and the entropy of log S, each by its own quadrature."""
    log_q = log_posterior(family, spread, log_mean)
    # Where to look for the mode; e^x q(x) of a lognormal peaks far away from that of q(x), at m + s^2.
    wide, far = (spread, spread**2 / 2) if family == "lognormal" else (1 / spread, 0)
    with np.errstate(over="ignore"):
        assert log_integral(log_q, log_mean - far, wide) == pytest.approx(0, abs=1e-11)
        first, second, entropy = (
            log_integral(log_q, log_mean - far, wide, factor)
            for factor in (lambda x: x, lambda x: x**2, lambda x: -log_q(x))
        )
        return first, second, log_integral(lambda x: log_q(x) + x, log_mean + far, wide), entropy


def reference_kl(q, p):
    """KL of a posterior (family, spread, log_mean) from a prior (family, first, second)."""
    first, second, log_expected, entropy = reference_moments(*q)
    family, one, two = p
    if family == "gamma":
        cross = two * math.exp(log_expected) - one * first - one * math.log(two) + gammaln(one)
    else:
        square = second - 2 * one * first + one**2
        cross = math.log(two) + 0.5 * math.log(2 * math.pi) + square / (2 * two**2)
    return cross - entropy
