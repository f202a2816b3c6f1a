"""Inference schemes by name: which prior, posterior family and objective belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    Family,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Gamma,
    LogNormal,
    Prior,
    Soft,
    Weibull,
)

__all__ = ["PriorName", "Scheme", "SchemeName", "build_scheme"]

SchemeName = Literal["soft", "weibull", "lognormal", "gamma"]
PriorName = Literal["fixed", "contextual"]


@dataclass(frozen=True)
class Scheme:
    """What one inference scheme consists of.

    Attributes:
        prior: Makes a prior network from (key width, heads); goes into the model.
        family: Posterior family of the guide.
        elbo: Objective.
    """

    prior: Callable[[int, int], Prior]
    family: Family
    elbo: AttentionELBO

    def guide(self, model: Callable[..., object]) -> AttentionGuide:
        """Guide over a model."""
        return AttentionGuide(model, self.family)


def build_scheme(
    name: SchemeName,
    *,
    prior: PriorName = "contextual",
    kl_weight: float | Callable[[int], float] = 1.0,
    concentration: float = 10.0,
    scale: float = 0.1,
    prior_rate: float = 1.0,
    prior_scale: float = 1.0,
    learnable: bool = False,
) -> Scheme:
    """Build a scheme; only its own options count.

    Args:
        name: "soft" (deterministic), "weibull", "gamma" (with Gamma priors) or "lognormal" (with LogNormal priors).
        prior: "fixed": Gamma(1, prior_rate) or LogNormal(0, prior_scale); "contextual": read off the keys.
        kl_weight: Weight of the summed KL, or a schedule.
        concentration: Concentration of a Weibull or Gamma posterior.
        scale: Standard deviation of log S of a LogNormal posterior.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of log S of a LogNormal prior.
        learnable: Train the posterior's concentration or scale.

    Raises:
        ValueError: An unknown name, or an option outside its range.

    Example:
        >>> build_scheme("weibull", concentration=5.0).family
        Weibull(concentration=5.0)
    """
    if name not in get_args(SchemeName):
        raise ValueError(f"unknown inference scheme '{name}'; expected one of {', '.join(get_args(SchemeName))}")
    if prior not in get_args(PriorName):
        raise ValueError(f"unknown prior '{prior}'; expected one of {', '.join(get_args(PriorName))}")
    contextual = prior == "contextual"
    if name == "lognormal":
        family: Family = LogNormal(scale, learnable=learnable)
        factory = ContextualLogNormalPrior if contextual else _keyless(FixedLogNormalPrior, loc=0.0)
        factory = partial(factory, scale=prior_scale)
    else:
        families = {
            "soft": Soft,
            "weibull": partial(Weibull, concentration),
            "gamma": partial(Gamma, concentration),
        }
        family = families[name]() if name == "soft" else families[name](learnable=learnable)
        factory = ContextualGammaPrior if contextual else _keyless(FixedGammaPrior, concentration=1.0)
        factory = partial(factory, rate=prior_rate)
    return Scheme(prior=factory, family=family, elbo=AttentionELBO(kl_weight=kl_weight))


def _keyless(prior: type[Prior], **options: float) -> Callable[..., Prior]:
    """A fixed prior as a factory that ignores (key width, heads)."""

    def make(key_dim: int, heads: int, **more: float) -> Prior:
        return prior(**options, **more)

    return make
