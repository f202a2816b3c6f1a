"""Inference schemes by name: a prior, a posterior family and an objective that belong together.

====================== ============================ ================================================
name                   posterior of the attention   objective
====================== ============================ ================================================
soft                   point mass at the mean       log f(E[z]): ordinary deterministic attention
weibull, gamma         that family, Gamma prior     ELBO, closed-form KL
lognormal              LogNormal, LogNormal prior   ELBO, closed-form KL
gaussian               plain Gaussian, and prior    ELBO, closed-form KL; weights off the simplex, for ablations
evidence               the prior, around the scores log evidence by several draws, which learns the width
marginal               none                         log evidence, alignments summed out
sparse_marginal        none; sparsemax prior        log evidence, summed over the few keys of the prior
hard                   the prior itself             E_p[log f], summed out
hard_sample            the prior itself             E_p[log f], score function, soft baseline
categorical            inference network            E_q[log f] - KL, summed out
sparse_categorical     inference network, sparsemax E_q[log f] - KL, summed over the few keys of the posterior
categorical_sample     inference network            E_q[log f] - KL, score function, soft baseline
gumbel                 inference network, relaxed   E_q[log f] - KL, pathwise
wake_sleep, iwae       inference network            importance-weighted bound, reweighted wake-sleep or VIMCO
dirichlet              inference network, relaxed   ELBO, closed-form KL; Dirichlet prior
====================== ============================ ================================================
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn

from pyro_attention._checks import check_kind
from pyro_attention.alignments.enumeration import AlignmentELBO
from pyro_attention.alignments.posteriors import Categorical, GumbelSoftmax, Marginal, SparseCategorical
from pyro_attention.alignments.priors import AlignmentPrior, SparseAlignmentPrior
from pyro_attention.families.amortized import Amortized
from pyro_attention.families.base import Family, OneParameterFamily, Prior
from pyro_attention.families.dirichlet import Dirichlet, DirichletPrior
from pyro_attention.families.gamma import ContextualGammaPrior, FixedGammaPrior, Gamma
from pyro_attention.families.gaussian import ContextualGaussianPrior, FixedGaussianPrior, Gaussian
from pyro_attention.families.lognormal import ContextualLogNormalPrior, FixedLogNormalPrior, LogNormal
from pyro_attention.families.score_prior import FromPrior, ScorePrior
from pyro_attention.families.soft import Soft
from pyro_attention.families.weibull import Weibull
from pyro_attention.families.width import WidthNetwork
from pyro_attention.guide import AttentionGuide
from pyro_attention.objectives.correction import correction_of
from pyro_attention.objectives.elbo import AttentionELBO, DifferentiableELBO
from pyro_attention.objectives.evidence import EvidenceELBO
from pyro_attention.objectives.importance import ImportanceELBO
from pyro_attention.objectives.score_function import ScoreFunctionELBO

__all__ = ["AlignmentSchemeName", "PriorFactory", "PriorName", "Scheme", "SchemeName", "WeightsSchemeName", "scheme"]

WeightsSchemeName = Literal["soft", "weibull", "lognormal", "gamma", "gaussian", "evidence"]
AlignmentSchemeName = Literal[
    "marginal",
    "sparse_marginal",
    "hard",
    "hard_sample",
    "categorical",
    "sparse_categorical",
    "categorical_sample",
    "gumbel",
    "wake_sleep",
    "iwae",
    "dirichlet",
]
SchemeName = Literal[WeightsSchemeName, AlignmentSchemeName]
PriorName = Literal["fixed", "contextual", "contextual_as_printed"]

PriorFactory: TypeAlias = Callable[[int, int], Prior]
KLWeight: TypeAlias = float | Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Prior, posterior family and objective that belong together; :func:`scheme` makes one by its name.

    Attributes:
        name: Name of the scheme.
        prior: Makes the prior of one attention layer from the width of its keys and the number of its heads.
        family: Posterior family.
        objective: Makes the objective; takes its further options, such as ``max_plate_nesting``.
        amortized: Whether the scores of the posterior come from an inference network.

    Raises:
        ValueError: The parts do not fit: a family of another kind than the prior, an objective that cannot train the
            family, or a width that would be learned and collapse.

    Example:
        >>> from pyro_attention import LatentAttention, scheme
        >>> weibull = scheme("weibull", concentration=5.0)
        >>> attention = LatentAttention("attention", weibull.prior(8, 2))
        >>> guide = weibull.guide(lambda scores, values: attention(scores, values).context)
        >>> weibull.family, type(weibull.objective()).__name__
        (Weibull(concentration=5.0), 'AttentionELBO')
    """

    name: str
    prior: PriorFactory
    family: Family
    objective: Callable[..., DifferentiableELBO]
    amortized: bool = False

    def __post_init__(self) -> None:
        check_kind(f"scheme '{self.name}': family", self.family, Family, "Weibull(concentration=10.0)")
        prior = self._prior_of_one_head()
        check_kind(f"scheme '{self.name}': the result of prior(1, 1)", prior, Prior, "FixedGammaPrior()")
        _check_parts(self.name, prior, self.family, self.objective())

    @property
    def is_of_alignments(self) -> bool:
        """Whether the latent variable is the key, or a point on the simplex, of each query."""
        return self._prior_of_one_head().kind in (AlignmentPrior.kind, DirichletPrior.kind)

    def _prior_of_one_head(self) -> Prior:
        with torch.random.fork_rng(devices=[]):  # to look at: the parameters of later priors are drawn as without it
            return self.prior(1, 1)

    def guide(
        self, model: Callable[..., object], network: nn.Module | None = None, *, from_prior: bool = False
    ) -> AttentionGuide:
        """Return the guide over a model, with a copy of the family, so that two guides share no parameter.

        Args:
            model: The Pyro model, whose layers have priors of this scheme.
            network: Inference network of an amortized scheme; see :class:`Amortized`.
            from_prior: See :class:`Amortized`.

        Raises:
            ValueError: The scheme is amortized and has no network, or is not and has one.
        """
        if self.amortized != (network is not None):
            state, remedy = ("missing", "pass network=") if self.amortized else ("given", "leave network out")
            reads = "an inference network" if self.amortized else "the attention layer"
            raise ValueError(f"scheme '{self.name}' has its scores from {reads}, and network is {state}; {remedy}")
        family = copy.deepcopy(self.family)
        if network is not None:
            family = Amortized(network, family, from_prior=from_prior)
        return AttentionGuide(model, family)


def scheme(name: SchemeName, **options: object) -> Scheme:
    """Return an inference scheme by its name.

    ============================ =========================================================================
    scheme                       options
    ============================ =========================================================================
    soft                         none
    weibull, gamma               ``concentration=10.0``, ``prior="contextual"``, ``prior_rate=1.0``,
                                 ``learnable=False``, ``kl_weight=1.0``, ``kl_mean=False``
    lognormal, gaussian          ``scale=0.1``, ``prior_scale=1.0``; ``prior``, ``learnable``, ``kl_weight`` and
                                 ``kl_mean`` as above
    evidence                     ``family="lognormal"`` (or ``"weibull"``, ``"gamma"``), ``width="network"`` (or
                                 ``"number"``, ``"fixed"``), ``initial`` (its scale, 0.5, or concentration, 10),
                                 ``draws=16`` (four or more are corrected by the jackknife)
    marginal, hard, categorical  ``roulette=0.0``
    sparse_marginal,             ``top_k=None``, ``roulette=0.0``
    sparse_categorical
    hard_sample                  none
    categorical_sample           ``kl_weight=1.0``
    gumbel                       ``temperature=0.5``, ``kl_weight=1.0``
    wake_sleep, iwae             ``particles=5``
    dirichlet                    ``kl_weight=1.0``
    ============================ =========================================================================

    A ``contextual`` prior reads the keys by a small network, ``contextual_as_printed`` with the parameters of the
    paper's text instead of its code (not for gaussian); a ``fixed`` one is Gamma(1, prior_rate), LogNormal(0,
    prior_scale) or Normal(0, prior_scale). ``kl_weight`` may be a schedule (:mod:`pyro_attention.schedules`). The width
    of the evidence is a network of the keys, one trained number, or fixed.

    Args:
        name: Name of the scheme, of the table above.
        options: Its options.

    Raises:
        ValueError: An unknown name or value, or a number outside its range.
        TypeError: An option that the scheme does not have.

    Example:
        >>> scheme("categorical").amortized, scheme("evidence", draws=16).family
        (True, FromPrior())
        >>> scheme("soft", temperature=0.5)
        Traceback (most recent call last):
        TypeError: scheme 'soft' has no option 'temperature'; its options: none

    Source: Fan et al. (2020), Bayesian Attention Modules, section 3; Deng et al. (2018), Latent Alignment and
    Variational Attention, section 3.
    """
    if name not in _SCHEMES:
        near = get_close_matches(str(name).lower(), _SCHEMES, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"unknown inference scheme '{name}'; expected one of {', '.join(_SCHEMES)}{hint}")
    make = _SCHEMES[name]
    known = list(inspect.signature(make).parameters)[1:]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TypeError(
            f"scheme '{name}' has no option '{unknown[0]}'; its options: {', '.join(known) if known else 'none'}"
        )
    return make(name, **options)


def _soft(name: str) -> Scheme:
    return Scheme(name=name, prior=lambda *_: FixedGammaPrior(), family=Soft(), objective=AttentionELBO)


def _with_concentration(
    name: str, *, concentration: float = 10.0, prior: PriorName = "contextual",
    prior_rate: float = 1.0, learnable: bool = False, kl_weight: KLWeight = 1.0, kl_mean: bool = False,
) -> Scheme:  # fmt: skip
    contextual, fixed = partial(ContextualGammaPrior, rate=prior_rate), partial(FixedGammaPrior, rate=prior_rate)
    family = {"weibull": Weibull, "gamma": Gamma}[name](concentration, learnable=learnable)
    return Scheme(
        name=name, prior=_choose_prior(name, prior, contextual, fixed), family=family,
        objective=partial(AttentionELBO, kl_weight=kl_weight, kl_mean=kl_mean),
    )  # fmt: skip


def _with_scale(
    name: str, *, scale: float = 0.1, prior: PriorName = "contextual",
    prior_scale: float = 1.0, learnable: bool = False, kl_weight: KLWeight = 1.0, kl_mean: bool = False,
) -> Scheme:  # fmt: skip
    families: Mapping[str, tuple[Callable[..., Family], Callable[..., Prior], Callable[..., Prior]]] = {
        "lognormal": (LogNormal, ContextualLogNormalPrior, FixedLogNormalPrior),
        "gaussian": (Gaussian, ContextualGaussianPrior, FixedGaussianPrior),
    }
    family, contextual, fixed = families[name]
    contextual, fixed = partial(contextual, scale=prior_scale), partial(fixed, scale=prior_scale)
    return Scheme(
        name=name, prior=_choose_prior(name, prior, contextual, fixed), family=family(scale, learnable=learnable),
        objective=partial(AttentionELBO, kl_weight=kl_weight, kl_mean=kl_mean),
    )  # fmt: skip


def _choose_prior(name: str, prior: str, contextual: Callable[..., Prior], fixed: Callable[[], Prior]) -> PriorFactory:
    if prior not in get_args(PriorName):
        raise ValueError(f"scheme '{name}': prior is {prior!r}, expected one of {', '.join(get_args(PriorName))}")
    if prior == "contextual_as_printed" and name == "gaussian":
        raise ValueError(
            "prior is contextual_as_printed, which the paper has for weibull, lognormal and gamma; for gaussian take "
            "contextual or fixed"
        )
    if prior == "fixed":
        return lambda *_: fixed()
    return contextual if prior == "contextual" else partial(contextual, as_printed=True)


def _evidence(
    name: str, *, family: Literal["lognormal", "weibull", "gamma"] = "lognormal",
    width: Literal["network", "number", "fixed"] = "network", initial: float | None = None, draws: int = 16,
) -> Scheme:  # fmt: skip
    families: Mapping[str, Callable[..., OneParameterFamily]] = {
        "lognormal": LogNormal,
        "weibull": Weibull,
        "gamma": Gamma,
    }
    if family not in families:
        raise ValueError(f"scheme '{name}': family is {family!r}, expected one of {', '.join(families)}")
    if width not in ("network", "number", "fixed"):
        raise ValueError(f"scheme '{name}': width is {width!r}, expected 'network', 'number' or 'fixed'")
    start = (0.5 if family == "lognormal" else 10.0) if initial is None else initial

    def around_scores(key_dim: int, heads: int) -> Prior:
        if width == "network":
            network = WidthNetwork(key_dim, heads, of="keys", initial=start, minimum=start / 100)
            return ScorePrior(families[family](network))
        return ScorePrior(families[family](start, learnable=width == "number"))

    objective = partial(EvidenceELBO, draws, correction=correction_of(draws))
    return Scheme(name=name, prior=around_scores, family=FromPrior(), objective=objective)


def _summed(name: str, *, roulette: float = 0.0) -> Scheme:
    return _alignment_scheme(
        name, Marginal() if name == "marginal" else Categorical(), partial(AlignmentELBO, roulette=roulette)
    )


def _sparse(name: str, *, top_k: int | None = None, roulette: float = 0.0) -> Scheme:
    objective = partial(AlignmentELBO, roulette=roulette)
    if name == "sparse_categorical":
        return _alignment_scheme(name, SparseCategorical(k=top_k), objective)
    return _alignment_scheme(name, Marginal(), objective, partial(SparseAlignmentPrior, k=top_k))


def _hard_sample(name: str) -> Scheme:
    return _alignment_scheme(name, Categorical(enumerate=False), ScoreFunctionELBO)


def _categorical_sample(name: str, *, kl_weight: KLWeight = 1.0) -> Scheme:
    return _alignment_scheme(name, Categorical(enumerate=False), partial(ScoreFunctionELBO, kl_weight=kl_weight))


def _gumbel(name: str, *, temperature: float = 0.5, kl_weight: KLWeight = 1.0) -> Scheme:
    return _alignment_scheme(name, GumbelSoftmax(temperature), partial(AttentionELBO, kl_weight=kl_weight))


def _importance(name: Literal["iwae", "wake_sleep"], *, particles: int = 5) -> Scheme:
    return _alignment_scheme(name, Categorical(enumerate=False), partial(ImportanceELBO, particles, name))


def _dirichlet(name: str, *, kl_weight: KLWeight = 1.0) -> Scheme:
    return _alignment_scheme(name, Dirichlet(), partial(AttentionELBO, kl_weight=kl_weight), DirichletPrior)


def _alignment_scheme(
    name: str,
    family: Family,
    objective: Callable[..., DifferentiableELBO],
    prior: Callable[[], Prior] = AlignmentPrior,
) -> Scheme:
    return Scheme(
        name=name, prior=lambda *_: prior(), family=family, objective=objective,
        amortized=name not in ("marginal", "sparse_marginal", "hard", "hard_sample"),
    )  # fmt: skip


_SCHEMES: Mapping[str, Callable[..., Scheme]] = {
    "soft": _soft,
    "weibull": _with_concentration,
    "lognormal": _with_scale,
    "gamma": _with_concentration,
    "gaussian": _with_scale,
    "evidence": _evidence,
    "marginal": _summed,
    "sparse_marginal": _sparse,
    "hard": _summed,
    "hard_sample": _hard_sample,
    "categorical": _summed,
    "sparse_categorical": _sparse,
    "categorical_sample": _categorical_sample,
    "gumbel": _gumbel,
    "wake_sleep": _importance,
    "iwae": _importance,
    "dirichlet": _dirichlet,
}


def _check_parts(name: str, prior: Prior, family: Family, objective: DifferentiableELBO) -> None:
    """Raise ValueError unless a prior, a family and an objective belong together."""
    if family.kind not in (None, prior.kind):
        raise ValueError(
            f"scheme '{name}': {type(family).__name__} fits priors of kind '{family.kind}', but the prior "
            f"{type(prior).__name__} is of kind '{prior.kind}'; take both from one row of the table of scheme()"
        )
    bare = family.family if isinstance(family, Amortized) else family
    if isinstance(bare, FromPrior):
        _check_prior_draws(name, prior, objective)
    expected = _objectives_of(bare)
    weighs_alignments = isinstance(objective, ImportanceELBO) and ImportanceELBO not in expected
    if weighs_alignments or not isinstance(objective, expected):
        raise ValueError(
            f"scheme '{name}': {type(objective).__name__} does not train {bare}; expected "
            f"{' or '.join(kind.__name__ for kind in expected)}"
        )


def _check_prior_draws(name: str, prior: Prior, objective: DifferentiableELBO) -> None:
    """Raise ValueError where weights drawn from a prior would not train the queries, or lose their width."""
    if not prior.reads_scores:
        raise ValueError(
            f"scheme '{name}': FromPrior draws the weights from {type(prior).__name__}, which does not read the "
            f"scores, so the queries would not train; expected a prior such as "
            f"ScorePrior(LogNormal(scale=0.5, learnable=True))"
        )
    learned = isinstance(prior, ScorePrior) and any(weight.requires_grad for weight in prior.parameters())
    if learned and not isinstance(objective, EvidenceELBO):
        raise ValueError(
            f"scheme '{name}': the width of {type(prior).__name__} is learned, and goes to zero under "
            f"{type(objective).__name__}; expected EvidenceELBO, or a fixed width"
        )


def _objectives_of(family: Family) -> tuple[type[DifferentiableELBO], ...]:
    """Return the objectives that train a family."""
    if "enumerate" in family.infer:
        return (AlignmentELBO,)
    if isinstance(family, Categorical):
        return (ScoreFunctionELBO, ImportanceELBO)
    return (AttentionELBO,)
