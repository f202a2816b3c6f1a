"""Posterior families and priors of attention weights, one file a family, and what they share.

Importing this package registers all families, all priors, and the closed-form KL of every pair that fits. To add a
family, write its file and import it here.
"""

from pyro_attention.families import alignment, amortized, dirichlet, gamma, gaussian, lognormal, soft, weibull

__all__ = ["alignment", "amortized", "dirichlet", "gamma", "gaussian", "lognormal", "soft", "weibull"]
