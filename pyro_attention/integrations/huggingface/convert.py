"""From a model of transformers to a Bayesian one, and back."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from pyro_attention.attention import LatentAttention
from pyro_attention.integrations.huggingface.attention import CHILD, NAME, attend
from pyro_attention.integrations.huggingface.files import load_priors
from pyro_attention.integrations.huggingface.likelihoods import Likelihood
from pyro_attention.integrations.huggingface.masks import compact_mask
from pyro_attention.integrations.huggingface.model import BayesianModel, bayesian_class
from pyro_attention.integrations.huggingface.priors import (
    PriorFactory,
    make_prior,
    prior_from_config,
    prior_to_config,
)
from pyro_attention.integrations.huggingface.probe import probe, probe_inputs

__all__ = ["bayesian", "deterministic"]


def bayesian(
    model: Any,
    *,
    prior: PriorFactory | None = None,
    sites: str | Sequence[str] | None = None,
    likelihood: Likelihood | None = None,
) -> Any:
    """Put latent weights at the attention modules of a model of transformers, in place."""
    stored = getattr(model.config, NAME, None)
    if stored is not None:
        prior = prior_from_config(stored["prior"]) if prior is None else prior
        sites = stored["sites"] if sites is None else sites
    prior = "gamma_contextual" if prior is None else prior
    patterns = ["*"] if sites is None else [sites] if isinstance(sites, str) else list(sites)
    register()
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    calls, _ = probe(model, probe_inputs(model))
    for path, module in model.named_modules():
        if module in calls and any(fnmatchcase(path, pattern) for pattern in patterns):
            latent = LatentAttention(path, make_prior(prior, calls[module].head_dim, path))
            setattr(module, CHILD, latent.to(model.device, model.dtype).train(module.training))
    model._pyro_attention_before = before
    model.__class__ = bayesian_class(type(model))
    model.pyro_likelihood = likelihood
    setattr(model.config, NAME, {"prior": prior_to_config(prior), "sites": patterns})
    if stored is not None:
        load_priors(model)
    return model


def deterministic(model: Any) -> Any:
    """The model as it was before :func:`bayesian`, with the weights it has now."""
    if not isinstance(model, BayesianModel):
        raise TypeError(f"model is a {type(model).__name__} without latent attention, expected one of bayesian(...)")
    module: nn.Module
    for module in model.modules():
        if hasattr(module, CHILD):
            delattr(module, CHILD)
    model.__class__ = model.deterministic_class
    model.set_attn_implementation(model.__dict__.pop("_pyro_attention_before"))
    delattr(model.config, NAME)
    del model.pyro_likelihood
    return model


def register() -> None:
    """Make the attention function known to transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, compact_mask)
