"""Options of the inference schemes, which the configurations of all tasks inherit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from guides.names import AblationSchemeName, ObjectiveName, PriorName, SchemeName

if TYPE_CHECKING:
    from guides.schemes import Scheme

__all__ = [
    "AMORTIZED",
    "WEIGHTS",
    "AlignmentSchemeOptions",
    "KLScheduleOptions",
    "PosteriorOptions",
    "SchemeOptions",
    "UsedBy",
]

# by option: the options that decide whether it is used, and their values for which it is
UsedBy = Mapping[str, Mapping[str, Sequence[str]]]

POSITIVE = ("weibull", "lognormal", "gamma")
WEIGHTS = ("weibull", "lognormal", "gamma", "gaussian")
WEIGHTED = (*WEIGHTS, "categorical_sample", "gumbel", "dirichlet")  # schemes with a weight of the KL
AMORTIZED = ("categorical_enum", "sparse_enum", "categorical_sample", "gumbel", "wake_sleep", "iwae", "dirichlet")
_SUMMED_OUT = ("marginal", "sparse_marginal", "hard_enum", "categorical_enum", "sparse_enum")


@dataclass(frozen=True, kw_only=True)
class KLScheduleOptions:
    """Schedule of the weight of the KL over the training steps.

    Args:
        kl_schedule: How the weight of the KL changes with the training step: constant, linear from 0, or sigmoid from
            .7 % of it. It is for guides with a weight of the KL.
        kl_steps: Number of training steps in which the weight rises.

    Example:
        >>> weight = KLScheduleOptions(kl_schedule="sigmoid", kl_steps=100).kl_weight_schedule(1.0)
        >>> [round(weight(step), 3) for step in (0, 25, 50, 75, 100)]
        [0.007, 0.076, 0.5, 0.924, 0.993]
    """

    kl_schedule: Literal["constant", "linear", "sigmoid"] = "constant"
    kl_steps: PositiveInt = 100

    def kl_weight_schedule(self, weight: float) -> float | Callable[[int], float]:
        """Return the weight, or its schedule for :class:`pyro_attention.AttentionELBO`."""
        from pyro_attention.schedules import rising  # it imports torch, which slows command lines down

        return weight if self.kl_schedule == "constant" else rising(self.kl_schedule, self.kl_steps, weight)


@dataclass(frozen=True, kw_only=True)
class PosteriorOptions:
    """Options of prior and posterior of Bayesian attention weights.

    ``USED_BY`` lists the schemes that use each option. A command refuses an option that its scheme does not use.

    Args:
        prior: fixed, or contextual, which is computed from the keys as in the code of Bayesian Attention Modules
            (Gamma(rate Psi, rate), LogNormal(log Psi)). contextual_as_printed is the prior in the text of the paper
            (Gamma(Psi, rate), LogNormal(Psi)). Soft attention has no KL and no prior.
        kl_weight: Weight of the KL, which is summed over all attention weights.
        concentration: Concentration of a Weibull or Gamma posterior; a larger one has less noise.
        scale: Standard deviation of log S of a LogNormal posterior, or of the weight of a Gaussian posterior.
    """

    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1.0
    concentration: PositiveFloat = 10.0
    scale: PositiveFloat = 0.1

    USED_BY: ClassVar[UsedBy] = {
        "prior": {"guide": WEIGHTS, "objective": ("elbo",)},
        "kl_weight": {"guide": WEIGHTED, "objective": ("elbo",)},
        "concentration": {"guide": ("weibull", "gamma")},
        "scale": {"guide": ("lognormal", "gaussian")},
    }


@dataclass(frozen=True, kw_only=True)
class SchemeOptions(PosteriorOptions, KLScheduleOptions):
    """Options of the inference scheme of a run with Bayesian attention weights.

    Args:
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of a LogNormal or Gaussian prior.
        learnable: Train the concentration or scale, one number for all attention weights.
        objective: elbo, or evidence: the log evidence estimated by several draws. The weights are then drawn from a
            prior around the scores, whose width is learned from the data, without a KL and without another prior. It is
            refused for headlines and pretraining, whose words lie in a plate of their own.
        draws: Number of draws of the evidence for each training step; the estimate of four or more draws is corrected
            by the jackknife.
        learned_width: Use a network of the keys for the concentration or scale of the evidence, which starts at the
            given number.

    Example:
        >>> SchemeOptions(guide="gamma", concentration=5.0).build_scheme().family
        Gamma(concentration=5.0)
    """

    guide: SchemeName | AblationSchemeName = "weibull"
    prior_rate: PositiveFloat = 1.0
    prior_scale: PositiveFloat = 1.0
    learnable: bool = False
    objective: ObjectiveName = "elbo"
    draws: PositiveInt = 16
    learned_width: bool = False

    USED_BY: ClassVar[UsedBy] = {
        "kl_schedule": {"guide": WEIGHTED, "objective": ("elbo",)},
        "kl_steps": {"guide": WEIGHTED, "objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
        "prior_rate": {"guide": ("weibull", "gamma"), "objective": ("elbo",)},
        "prior_scale": {"guide": ("lognormal", "gaussian"), "objective": ("elbo",)},
        "learnable": {"guide": WEIGHTS},
        "objective": {"guide": POSITIVE},
        "draws": {"guide": POSITIVE, "objective": ("evidence",)},
        "learned_width": {"guide": POSITIVE, "objective": ("evidence",)},
    }

    def build_scheme(self, **changes: Any) -> "Scheme":
        """Build the scheme, with ``changes`` to the arguments of :func:`guides.schemes.build_scheme`."""
        from guides.schemes import build_scheme  # it imports torch, which slows command lines down

        schedule = {field.name for field in fields(KLScheduleOptions)}
        names = [field.name for field in fields(AlignmentSchemeOptions) if field.name not in schedule]
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "kl_weight" not in changes:
            options["kl_weight"] = self.kl_weight_schedule(self.kl_weight)
        return build_scheme(options.pop("guide"), **(options | changes))


@dataclass(frozen=True, kw_only=True)
class AlignmentSchemeOptions(SchemeOptions):
    """Options of the inference scheme of a run with Bayesian attention weights or latent alignments.

    Args:
        guide: Inference scheme; soft is ordinary deterministic attention.
        prior: fixed, contextual (computed from the keys), or contextual_as_printed (as in the text of the paper), for
            weibull, lognormal and gamma; fixed or contextual for gaussian.
        kl_weight: Weight of the KL; schemes that sum alignments out always have weight 1.
        temperature: Temperature of the relaxed alignments of gumbel.
        particles: Number of samples of wake_sleep and iwae.
        top_k: Largest number of keys of an alignment of sparse_marginal and sparse_enum; as many as sparsemax selects
            when omitted.
        roulette: Posterior probability below which summed-out alignments are randomly left out of the gradient of the
            words; the remaining ones get a larger weight (Russian roulette). The gradient stays unbiased, and a step of
            a trained network is faster; 0.001 is a good value. 0 leaves out none.
    """

    temperature: PositiveFloat = 0.5
    particles: PositiveInt = 5
    top_k: PositiveInt | None = None
    roulette: NonNegativeFloat = 0.0

    USED_BY: ClassVar[UsedBy] = {
        "temperature": {"guide": ("gumbel",)},
        "particles": {"guide": ("wake_sleep", "iwae")},
        "top_k": {"guide": ("sparse_marginal", "sparse_enum")},
        "roulette": {"guide": _SUMMED_OUT},
    }
