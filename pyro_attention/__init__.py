"""Attention weights as latent variables of Pyro models.

Distributions, registries, bases of parts of your own and what is rarely used live in their modules, such as
``families.gaussian``. ``Aligner``, ``bayesian`` and ``check_coverage`` are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pyro_attention.alignments.enumeration import AlignmentELBO
from pyro_attention.alignments.exact import exact_alignments
from pyro_attention.alignments.likelihoods import TokenLikelihood
from pyro_attention.alignments.node_likelihood import NodeLikelihood
from pyro_attention.alignments.posteriors import Categorical, Marginal
from pyro_attention.alignments.priors import AlignmentPrior
from pyro_attention.attention import LatentAttention
from pyro_attention.attention_call import AttentionCall
from pyro_attention.check import check_model
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.amortized import Amortized
from pyro_attention.families.dirichlet import Dirichlet
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior, Gamma
from pyro_attention.families.lognormal import LogNormal
from pyro_attention.families.score_prior import FromPrior, ScorePrior
from pyro_attention.families.soft import Soft
from pyro_attention.families.weibull import Weibull
from pyro_attention.families.width import WidthNetwork
from pyro_attention.guide import AttentionGuide
from pyro_attention.layers.graph import GraphAttention
from pyro_attention.layers.multihead import MultiheadAttention
from pyro_attention.layout import Dense
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.evidence import EvidenceELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO
from pyro_attention.over_queries import DoublyNormalized, Hybrid
from pyro_attention.posterior.importance import importance_posterior
from pyro_attention.posterior.laplace import LaplacePosterior
from pyro_attention.posterior.predictive import predict
from pyro_attention.posterior.sampling import sample_posterior
from pyro_attention.posterior.sites import sample_sites
from pyro_attention.schemes import scheme

if TYPE_CHECKING:
    from pyro_attention.aligner.aligner import Aligner
    from pyro_attention.analysis.coverage import check_coverage
    from pyro_attention.bayesian_network import bayesian

__version__ = "0.2.0"

__all__ = [
    "Aligner",
    "AlignmentELBO",
    "AlignmentPrior",
    "Amortized",
    "AttentionCall",
    "AttentionELBO",
    "AttentionGuide",
    "Categorical",
    "ContextualGammaPrior",
    "Dense",
    "Dirichlet",
    "DoublyNormalized",
    "EdgeList",
    "EvidenceELBO",
    "FixedGammaPrior",
    "FromPrior",
    "Gamma",
    "GraphAttention",
    "Hybrid",
    "LaplacePosterior",
    "LatentAttention",
    "LogNormal",
    "Marginal",
    "MultiheadAttention",
    "NodeLikelihood",
    "ScoreFunctionELBO",
    "ScorePrior",
    "Soft",
    "TokenLikelihood",
    "Weibull",
    "WidthNetwork",
    "bayesian",
    "check_coverage",
    "check_model",
    "elbo_for",
    "exact_alignments",
    "importance_posterior",
    "predict",
    "sample_posterior",
    "sample_sites",
    "scheme",
]

_MODULES_OF_NAMES = {
    "Aligner": "pyro_attention.aligner.aligner",
    "bayesian": "pyro_attention.bayesian_network",
    "check_coverage": "pyro_attention.analysis.coverage",
}


def __getattr__(name: str) -> object:
    """Import a name of the library that few programs need, when it is asked for."""
    if name not in _MODULES_OF_NAMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    member: object = getattr(import_module(_MODULES_OF_NAMES[name]), name)
    return member


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES_OF_NAMES})
