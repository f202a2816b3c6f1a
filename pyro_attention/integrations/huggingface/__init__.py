"""Bayesian attention inside the models of Hugging Face's transformers."""

from pyro_attention.integrations.huggingface.adapters import load_adapter
from pyro_attention.integrations.huggingface.convert import bayesian, deterministic
from pyro_attention.integrations.huggingface.generation import answer_uncertainty, generated_view
from pyro_attention.integrations.huggingface.model import ELBOModel

__all__ = ["ELBOModel", "answer_uncertainty", "bayesian", "deterministic", "generated_view", "load_adapter"]
