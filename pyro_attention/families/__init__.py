"""Posterior families and priors of attention weights, one file a family, and what they share.

Importing this package registers all families, all priors, and the closed-form KL of every pair that fits, torch's own
Weibull, LogNormal and Gamma included. To add a family, write its file and import it here.
"""

from pyro_attention.families import (
    alignment,
    amortized,
    dirichlet,
    gamma,
    gaussian,
    lognormal,
    soft,
    textbook_kl,
    weibull,
)

__all__ = ["alignment", "amortized", "dirichlet", "gamma", "gaussian", "lognormal", "soft", "textbook_kl", "weibull"]
