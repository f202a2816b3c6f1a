"""Bayesian attention inside the models of Hugging Face's transformers."""

from pyro_attention.integrations.huggingface.convert import bayesian, deterministic
from pyro_attention.integrations.huggingface.files import from_pretrained

__all__ = ["bayesian", "deterministic", "from_pretrained"]
