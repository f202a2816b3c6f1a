"""Alignments: weights that are one-hot, one key (or none) a query, and what can be computed of them exactly.

``base`` says what every alignment distribution does; ``categorical``, ``sparse`` and ``edges`` are the distributions,
``priors`` and ``posteriors`` the networks that give them. ``summed`` and the likelihoods are sums below alignments,
``enumeration`` is the objective, and ``exact`` the exact posterior. Importing this package registers its families and
priors.
"""

from pyro_attention.alignments import posteriors, priors

__all__ = ["posteriors", "priors"]
