"""Alignments: weights that are one-hot, one key (or none) a query, and what can be computed of them exactly.

Distributions over alignments (dense, sparse, over edges), exact sums over them in likelihoods and objectives, and the
exact posterior. Importing this package registers its families and priors.
"""

from pyro_attention.alignments import categorical, sparse

__all__ = ["categorical", "sparse"]
