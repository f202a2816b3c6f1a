"""Inference schemes by name: which prior, posterior family and objective belong together.

=================== ============================ ================================================
name                posterior of the attention   objective
=================== ============================ ================================================
soft                point mass at the mean       log f(E[z]): ordinary deterministic attention
weibull, gamma      that family, Gamma prior     ELBO, closed-form KL; or evidence: that family as the prior
lognormal           that family, LogNormal prior ELBO, closed-form KL; or evidence, likewise
gaussian            plain Gaussian, and prior    ELBO, closed-form KL; weights off the simplex, for ablations
marginal            none                         log evidence, alignments summed out
sparse_marginal     none; sparsemax prior        log evidence, summed over the few keys of the prior
hard_enum           the prior itself             E_p[log f], summed out
hard_sample         the prior itself             E_p[log f], score function, soft baseline
categorical_enum    inference network            E_q[log f] - KL, summed out
sparse_enum         inference network, sparsemax E_q[log f] - KL, summed over the few keys of the posterior
categorical_sample  inference network            E_q[log f] - KL, score function, soft baseline
gumbel              inference network, relaxed   E_q[log f] - KL, pathwise
wake_sleep, iwae    inference network            importance-weighted bound, reweighted wake-sleep or VIMCO
dirichlet           inference network, relaxed   ELBO, closed-form KL; Dirichlet prior
=================== ============================ ================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from pyro.infer import ELBO
from torch import nn

from guides.names import (
    AblationSchemeName,
    AlignmentSchemeName,
    NormalizerName,
    ObjectiveName,
    PriorName,
    SchemeName,
)
from pyro_attention import (
    Amortized,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dirichlet,
    EvidenceELBO,
    FromPrior,
    GumbelSoftmax,
    Hybrid,
    ImportanceELBO,
    Marginal,
    ScorePrior,
    Soft,
    WidthNetwork,
    elbo_for,
)
from pyro_attention.families.base import FAMILIES, PRIORS, Family, Prior
from pyro_attention.families.sparse import SparseCategorical
from pyro_attention.normalizers import NORMALIZERS, Normalizer
from pyro_attention.over_queries import Sinkhorn

__all__ = ["Scheme", "build_normalizer", "build_scheme"]

PriorFactory = Callable[[int, int], Prior]
KLWeight = float | Callable[[int], float]


@dataclass(frozen=True)
class Scheme:
    """What one inference scheme consists of.

    Attributes:
        prior: Makes a prior network from (key width, heads); goes into the model.
        family: Posterior family of the guide.
        elbo: Objective.
        amortized: The posterior's scores come from an inference network.
    """

    prior: PriorFactory
    family: Family
    elbo: ELBO
    amortized: bool = False

    def guide(
        self, model: Callable[..., object], network: nn.Module | None = None, *, from_prior: bool = False
    ) -> AttentionGuide:
        """Guide over a model, with the inference network of an amortized scheme; see :class:`Amortized`."""
        if not self.amortized:
            return AttentionGuide(model, self.family)
        if network is None:
            raise ValueError(f"the scheme of {self.family} has its scores from an inference network; pass network=")
        return AttentionGuide(model, Amortized(network, self.family, from_prior=from_prior))


def build_scheme(
    name: SchemeName | AblationSchemeName,
    *,
    prior: PriorName = "contextual",
    kl_weight: KLWeight = 1.0,
    concentration: float = 10.0,
    scale: float = 0.1,
    prior_rate: float = 1.0,
    prior_scale: float = 1.0,
    learnable: bool = False,
    objective: ObjectiveName = "elbo",
    draws: int = 8,
    learned_width: bool = False,
    temperature: float = 0.5,
    particles: int = 5,
    top_k: int | None = None,
    roulette: float = 0.0,
    plates: int = 2,
) -> Scheme:
    """Build a scheme of the table above; the options of other schemes are not used.

    They are those of :class:`guides.options.AlignmentSchemeOptions`; besides, ``kl_weight`` may be a schedule, and
    ``plates`` is the number of nested plates, which no objective then has to guess by another run of the model. A fixed
    prior is Gamma(1, prior_rate), LogNormal(0, prior_scale) or Normal(0, prior_scale).

    Raises:
        ValueError: An unknown name, or an option outside its range.

    Example:
        >>> build_scheme("weibull", concentration=5.0).family
        Weibull(concentration=5.0)
        >>> build_scheme("categorical_enum").amortized
        True

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3; Deng et al. (2018), Latent Alignment and
    Variational Attention, section 3.
    """
    names: tuple[str, ...] = get_args(SchemeName) + get_args(AblationSchemeName)
    if name not in names:
        raise ValueError(f"unknown inference scheme '{name}'; expected one of {', '.join(names)}")
    if prior not in get_args(PriorName):
        raise ValueError(f"unknown prior '{prior}'; expected one of {', '.join(get_args(PriorName))}")
    if name in get_args(AlignmentSchemeName):
        return _alignment_scheme(name, kl_weight, roulette, temperature, particles, top_k, plates)
    weighted = AttentionELBO(kl_weight=kl_weight, max_plate_nesting=plates)
    if name == "soft":
        return Scheme(_factory("gamma_fixed"), Soft(), weighted)
    family: Any = FAMILIES[name]
    if objective == "evidence" and name != "gaussian":
        number = concentration if name in ("weibull", "gamma") else scale

        def around_scores(key_dim: int, heads: int) -> Prior:
            width = WidthNetwork(key_dim, heads, of="keys", initial=number, minimum=number / 100)
            return ScorePrior(family(width) if learned_width else family(number, learnable=learnable))

        return Scheme(around_scores, FromPrior(), EvidenceELBO(draws, max_plate_nesting=plates))
    kind, _, printed = prior.partition("_")
    as_printed = {"as_printed": True} if printed else {}
    if printed and name == "gaussian":
        raise ValueError(
            "prior is contextual_as_printed, which the paper has for weibull, lognormal and gamma; for "
            "gaussian take contextual or fixed"
        )
    if name in ("weibull", "gamma"):
        posterior = family(concentration, learnable=learnable)
        factory = _factory(f"gamma_{kind}", rate=prior_rate, **as_printed)
    else:
        posterior = family(scale, learnable=learnable)
        factory = _factory(f"{name}_{kind}", scale=prior_scale, **as_printed)
    return Scheme(factory, posterior, weighted)


def _alignment_scheme(
    name: str, kl_weight: KLWeight, roulette: float, temperature: float, particles: int, top_k: int | None, plates: int
) -> Scheme:
    families: dict[str, Callable[[], Family]] = {
        "marginal": Marginal,
        "sparse_marginal": Marginal,
        "hard_enum": Categorical,
        "categorical_enum": Categorical,
        "sparse_enum": lambda: SparseCategorical(k=top_k),
        "gumbel": lambda: GumbelSoftmax(temperature),
        "dirichlet": Dirichlet,
    }
    family = families.get(name, lambda: Categorical(enumerate=False))()
    elbo: ELBO
    if name in ("iwae", "wake_sleep"):
        elbo = ImportanceELBO(particles, name, max_plate_nesting=plates)  # type: ignore[arg-type]
    elif "enumerate" in family.infer:
        elbo = elbo_for(family, roulette=roulette, max_plate_nesting=plates)
    else:
        elbo = elbo_for(family, kl_weight=kl_weight, max_plate_nesting=plates)
    if name == "sparse_marginal":
        prior = _factory("sparse_alignment", k=top_k)
    else:
        prior = _factory("dirichlet" if name == "dirichlet" else "alignment")
    from_prior = ("marginal", "sparse_marginal", "hard_enum", "hard_sample")
    return Scheme(prior, family, elbo, amortized=name not in from_prior)


def build_normalizer(name: NormalizerName, heads: int, *, initial: float = 0.5, sweeps: int = 5) -> Normalizer:
    """Build a normalizer by its name.

    Args:
        name: The name.
        heads: Number of heads of the attention.
        initial: Share of doubly normalized attention that hybrid begins with.
        sweeps: Times that sinkhorn normalizes over the queries and over the keys; doubly_normalized does once.

    Example:
        >>> build_normalizer("sinkhorn", 2, sweeps=3)
        Sinkhorn(3)
    """
    if name == "hybrid":
        return Hybrid(heads, initial=initial)
    return Sinkhorn(sweeps) if name == "sinkhorn" else NORMALIZERS[name]()


def _factory(name: str, **options: Any) -> PriorFactory:
    """Makes a registered prior from (key width, heads), which those without a network leave aside."""
    prior: Any = PRIORS[name]
    return partial(prior, **options) if name.endswith("_contextual") else lambda key_dim, heads: prior(**options)
