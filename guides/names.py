"""Names of inference schemes, priors and normalizers as types of options; this module imports no torch."""

from typing import Literal

WeightsSchemeName = Literal["soft", "weibull", "lognormal", "gamma"]
AlignmentSchemeName = Literal[
    "marginal",
    "sparse_marginal",
    "hard_enum",
    "hard_sample",
    "categorical_enum",
    "sparse_enum",
    "categorical_sample",
    "gumbel",
    "wake_sleep",
    "iwae",
    "dirichlet",
]
SchemeName = Literal[WeightsSchemeName, AlignmentSchemeName]
AblationSchemeName = Literal["gaussian"]  # weights outside of the simplex, which some evaluations do not support
ObjectiveName = Literal["elbo", "evidence"]
PriorName = Literal["fixed", "contextual", "contextual_as_printed"]
NormalizerName = Literal["softmax", "doubly_normalized", "hybrid", "sinkhorn"]
