"""Attention weights as latent variables of Pyro models."""

from pyro_attention.attention import AttentionOutput, LatentAttention, name_sites
from pyro_attention.check import ModelReport, SiteReport, check_model
from pyro_attention.edge_list import EdgeList
from pyro_attention.families.alignment import (
    AlignmentPrior,
    AlignmentWeights,
    Categorical,
    CategoricalAlignment,
    Marginal,
)
from pyro_attention.families.amortised import Amortised
from pyro_attention.families.base import FAMILIES, PRIORS, Family, OneParameterFamily, Prior
from pyro_attention.families.dirichlet import Dirichlet, DirichletPrior, DirichletWeights
from pyro_attention.families.distribution import AttentionDistribution, LogWeights
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior, Gamma, GammaWeights
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior, Gaussian, GaussianWeights
from pyro_attention.families.gumbel import GumbelSoftmax
from pyro_attention.families.key_network import KeyNetwork
from pyro_attention.families.lognormal import ContextualLogNormalPrior, FixedLogNormalPrior, LogNormal, LogNormalWeights
from pyro_attention.families.soft import Soft
from pyro_attention.families.sparse import SparseAlignment, SparseAlignmentPrior, SparseCategorical
from pyro_attention.families.weibull import Weibull, WeibullWeights
from pyro_attention.guide import AttentionGuide, GuideRun, PriorWarning
from pyro_attention.layers.graph import GraphAttention
from pyro_attention.layers.multihead import MultiheadAttention
from pyro_attention.layers.scores import Additive, Bilinear, GraphAdditive, GraphAdditiveV2, ScaledDotProduct
from pyro_attention.layout import Dense, Layout
from pyro_attention.likelihoods import TokenLikelihood
from pyro_attention.normalizers import NORMALIZERS, Normalizer, Softmax
from pyro_attention.objectives.choice import elbo_for
from pyro_attention.objectives.elbo import AttentionELBO, KLWarning
from pyro_attention.objectives.enumeration import AlignmentELBO
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO
from pyro_attention.over_queries import DoublyNormalized, Hybrid, Sinkhorn
from pyro_attention.posterior.exact import exact_alignments
from pyro_attention.posterior.predictive import Prediction, predict, sample_posterior

__version__ = "0.2.0"

__all__ = [
    "FAMILIES",
    "NORMALIZERS",
    "PRIORS",
    "Additive",
    "AlignmentELBO",
    "AlignmentPrior",
    "AlignmentWeights",
    "Amortised",
    "AttentionDistribution",
    "AttentionELBO",
    "AttentionGuide",
    "AttentionOutput",
    "Bilinear",
    "Categorical",
    "CategoricalAlignment",
    "ContextualGammaPrior",
    "ContextualGaussianPrior",
    "ContextualLogNormalPrior",
    "Dense",
    "Dirichlet",
    "DirichletPrior",
    "DirichletWeights",
    "DoublyNormalized",
    "EdgeList",
    "Family",
    "FixedGammaPrior",
    "FixedGaussianPrior",
    "FixedLogNormalPrior",
    "Gamma",
    "GammaWeights",
    "Gaussian",
    "GaussianWeights",
    "GraphAdditive",
    "GraphAdditiveV2",
    "GraphAttention",
    "GuideRun",
    "GumbelSoftmax",
    "Hybrid",
    "ImportanceELBO",
    "KLWarning",
    "KeyNetwork",
    "LatentAttention",
    "Layout",
    "LogNormal",
    "LogNormalWeights",
    "LogWeights",
    "Marginal",
    "ModelReport",
    "MultiheadAttention",
    "Normalizer",
    "OneParameterFamily",
    "Prediction",
    "Prior",
    "PriorWarning",
    "ScaledDotProduct",
    "ScoreFunctionELBO",
    "Sinkhorn",
    "SiteReport",
    "Soft",
    "Softmax",
    "SparseAlignment",
    "SparseAlignmentPrior",
    "SparseCategorical",
    "TokenLikelihood",
    "Weibull",
    "WeibullWeights",
    "check_model",
    "elbo_for",
    "exact_alignments",
    "name_sites",
    "predict",
    "sample_posterior",
]
