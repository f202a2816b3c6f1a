"""Posterior families and priors of attention weights, one file a family, and their base classes.

Importing this package registers its families and priors, and the closed-form KL of every pair that fits, torch's own
Weibull, LogNormal and Gamma included; those of alignments stand in ``alignments``. A family or prior needs no
registration to be used. Registered and imported here, it is offered in error messages, and a prior can be named in
``integrations``. ``schemes`` lists the schemes by name, and ``blocked.distributions`` what blocked layers draw.
"""

from pyro_attention.families import (
    amortized,
    dirichlet,
    gamma,
    gaussian,
    lognormal,
    soft,
    textbook_kl,
    weibull,
)

__all__ = ["amortized", "dirichlet", "gamma", "gaussian", "lognormal", "soft", "textbook_kl", "weibull"]
