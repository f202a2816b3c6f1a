"""Names of the inference schemes and priors, for those who only choose one; nothing else is imported."""

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
AblationSchemeName = Literal["gaussian"]  # weights off the simplex, which not every evaluation is made for
ObjectiveName = Literal["elbo", "evidence"]
PriorName = Literal["fixed", "contextual", "contextual_as_printed"]
NormalizerName = Literal["softmax", "doubly_normalized", "hybrid", "sinkhorn"]
