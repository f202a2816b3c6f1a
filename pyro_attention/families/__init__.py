"""Posterior families and priors of attention weights, one file a family, and what they share.

Importing this package registers all families, all priors, and the closed-form KL of every pair. To add a family, write
its file and import it here.
"""

from pyro_attention.families.alignment import (
    AlignmentPrior,
    AlignmentWeights,
    Categorical,
    CategoricalAlignment,
    ExpectedAlignment,
    Marginal,
)
from pyro_attention.families.amortised import Amortised
from pyro_attention.families.base import FAMILIES, Family, OneParameterFamily
from pyro_attention.families.dirichlet import Dirichlet, DirichletPrior, DirichletWeights
from pyro_attention.families.distribution import AttentionDistribution
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior, Gamma, GammaWeights
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior, Gaussian, GaussianWeights
from pyro_attention.families.gumbel import GumbelSoftmax
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.families.log_weights import LogWeights
from pyro_attention.families.lognormal import (
    ContextualLogNormalPrior,
    FixedLogNormalPrior,
    LogNormal,
    LogNormalWeights,
)
from pyro_attention.families.prior import PRIORS, Prior
from pyro_attention.families.proposal import Proposal
from pyro_attention.families.soft import Soft
from pyro_attention.families.weibull import Weibull, WeibullWeights

__all__ = [
    "FAMILIES",
    "PRIORS",
    "AlignmentPrior",
    "AlignmentWeights",
    "Amortised",
    "AttentionDistribution",
    "Categorical",
    "CategoricalAlignment",
    "ContextualGammaPrior",
    "ContextualGaussianPrior",
    "ContextualLogNormalPrior",
    "Dirichlet",
    "DirichletPrior",
    "DirichletWeights",
    "ExpectedAlignment",
    "Family",
    "FixedGammaPrior",
    "FixedGaussianPrior",
    "FixedLogNormalPrior",
    "Gamma",
    "GammaWeights",
    "Gaussian",
    "GaussianWeights",
    "GumbelSoftmax",
    "KeyNetwork",
    "LogNormal",
    "LogNormalWeights",
    "LogWeights",
    "Marginal",
    "OneParameterFamily",
    "Prior",
    "Proposal",
    "Soft",
    "Weibull",
    "WeibullWeights",
]
