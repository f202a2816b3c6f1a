"""Attention weights as latent variables of Pyro models.

Distributions, registries, bases of parts of your own and what is rarely used live in their modules, such as
``families.gaussian``.
"""

from pyro_attention.attention import AttentionOutput, LatentAttention, name_sites
from pyro_attention.attention_call import AttentionCall
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.alignment import AlignmentPrior, Categorical, GumbelSoftmax, Marginal
from pyro_attention.families.amortized import Amortized
from pyro_attention.families.dirichlet import Dirichlet, DirichletPrior
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior, Gamma
from pyro_attention.families.lognormal import ContextualLogNormalPrior, FixedLogNormalPrior, LogNormal
from pyro_attention.families.score_prior import FromPrior, ScorePrior
from pyro_attention.families.soft import Soft
from pyro_attention.families.weibull import Weibull
from pyro_attention.families.width import WidthNetwork
from pyro_attention.guide import AttentionGuide
from pyro_attention.layers.graph import GraphAttention
from pyro_attention.layers.multihead import MultiheadAttention
from pyro_attention.layers.scores import Additive, ScaledDotProduct
from pyro_attention.layout import Dense
from pyro_attention.likelihoods import TokenLikelihood
from pyro_attention.model_report import check_model
from pyro_attention.node_likelihood import NodeLikelihood
from pyro_attention.normalizers import Softmax
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import AttentionELBO
from pyro_attention.objectives.enumeration import AlignmentELBO
from pyro_attention.objectives.evidence import EvidenceELBO
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO
from pyro_attention.over_queries import DoublyNormalized, Hybrid
from pyro_attention.posterior.exact import exact_alignments
from pyro_attention.posterior.given import weighted_posterior
from pyro_attention.posterior.predictive import predict
from pyro_attention.posterior.sampling import sample_posterior
from pyro_attention.posterior.score_posterior import ScorePosterior
from pyro_attention.posterior.sites import sample_sites

__version__ = "0.2.0"

__all__ = [
    "Additive",
    "AlignmentELBO",
    "AlignmentPrior",
    "Amortized",
    "AttentionCall",
    "AttentionELBO",
    "AttentionGuide",
    "AttentionOutput",
    "Categorical",
    "ContextualGammaPrior",
    "ContextualLogNormalPrior",
    "Dense",
    "Dirichlet",
    "DirichletPrior",
    "DoublyNormalized",
    "EdgeList",
    "EvidenceELBO",
    "FixedGammaPrior",
    "FixedLogNormalPrior",
    "FromPrior",
    "Gamma",
    "GraphAttention",
    "GumbelSoftmax",
    "Hybrid",
    "ImportanceELBO",
    "LatentAttention",
    "LogNormal",
    "Marginal",
    "MultiheadAttention",
    "NodeLikelihood",
    "ScaledDotProduct",
    "ScoreFunctionELBO",
    "ScorePosterior",
    "ScorePrior",
    "Soft",
    "Softmax",
    "TokenLikelihood",
    "Weibull",
    "WidthNetwork",
    "check_model",
    "elbo_for",
    "exact_alignments",
    "name_sites",
    "predict",
    "sample_posterior",
    "sample_sites",
    "weighted_posterior",
]
