"""Options of the inference schemes, written once: the configuration of a run inherits them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from guides.names import AblationSchemeName, ObjectiveName, PriorName, SchemeName

if TYPE_CHECKING:
    from guides.schemes import Scheme

__all__ = [
    "AMORTISED",
    "WEIGHTS",
    "AlignmentSchemeOptions",
    "KLScheduleOptions",
    "PosteriorOptions",
    "SchemeOptions",
    "UsedBy",
]

# an option, the options that decide whether it is used, and for which of their values it is
UsedBy = Mapping[str, Mapping[str, Sequence[str]]]

POSITIVE = ("weibull", "lognormal", "gamma")
WEIGHTS = ("weibull", "lognormal", "gamma", "gaussian")
WEIGHTED = (*WEIGHTS, "categorical_sample", "gumbel", "dirichlet")  # of which the KL has a weight
AMORTISED = ("categorical_enum", "sparse_enum", "categorical_sample", "gumbel", "wake_sleep", "iwae", "dirichlet")
_SUMMED_OUT = ("marginal", "sparse_marginal", "hard_enum", "categorical_enum", "sparse_enum")


@dataclass(frozen=True, kw_only=True)
class KLScheduleOptions:
    """How the weight of the KL develops over the training steps.

    Args:
        kl_schedule: constant; or from a small value to the whole weight, in a line from 0 or along a sigmoid from .7 %.
        kl_steps: Training steps in which it rises.

    Example:
        >>> weight = KLScheduleOptions(kl_schedule="sigmoid", kl_steps=100).annealed(1.0)
        >>> [round(weight(step), 3) for step in (0, 25, 50, 75, 100)]
        [0.007, 0.076, 0.5, 0.924, 0.993]
    """

    kl_schedule: Literal["constant", "linear", "sigmoid"] = "constant"
    kl_steps: PositiveInt = 100

    def annealed(self, weight: float) -> float | Callable[[int], float]:
        """The weight, or its schedule as :class:`pyro_attention.AttentionELBO` takes it."""
        from pyro_attention.schedules import rising  # which imports torch, and command lines do without

        return weight if self.kl_schedule == "constant" else rising(self.kl_schedule, self.kl_steps, weight)


@dataclass(frozen=True, kw_only=True)
class PosteriorOptions:
    """Prior and posterior of Bayesian attention weights, whichever the family.

    ``USED_BY`` says which scheme uses which option; a command refuses one that is given and not used.

    Args:
        prior: fixed, or contextual (read off the keys), as in the code of Bayesian Attention Modules (Gamma(rate Psi,
            rate), LogNormal(log Psi)); contextual_as_printed is that of the paper's text (Gamma(Psi, rate),
            LogNormal(Psi)). Soft attention has no KL and does not use it.
        kl_weight: Weight of the KL, which is summed over all attention weights.
        concentration: Concentration of a Weibull or Gamma posterior; the larger, the less noise.
        scale: Standard deviation of log S of a LogNormal posterior, of a weight itself of a Gaussian one.
    """

    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1.0
    concentration: PositiveFloat = 10.0
    scale: PositiveFloat = 0.1

    USED_BY: ClassVar[UsedBy] = {
        "prior": {"guide": WEIGHTS, "objective": ("elbo",)},
        "kl_weight": {"guide": WEIGHTED, "objective": ("elbo",)},
        "kl_schedule": {"guide": WEIGHTED, "objective": ("elbo",)},
        "kl_steps": {"guide": WEIGHTED, "objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
        "concentration": {"guide": ("weibull", "gamma")},
        "scale": {"guide": ("lognormal", "gaussian")},
        "prior_rate": {"guide": ("weibull", "gamma"), "objective": ("elbo",)},
        "prior_scale": {"guide": ("lognormal", "gaussian"), "objective": ("elbo",)},
        "learnable": {"guide": WEIGHTS},
        "objective": {"guide": POSITIVE},
        "draws": {"guide": POSITIVE, "objective": ("evidence",)},
        "learned_width": {"guide": POSITIVE, "objective": ("evidence",)},
        "temperature": {"guide": ("gumbel",)},
        "particles": {"guide": ("wake_sleep", "iwae")},
        "top_k": {"guide": ("sparse_marginal", "sparse_enum")},
        "roulette": {"guide": _SUMMED_OUT},
    }


@dataclass(frozen=True, kw_only=True)
class SchemeOptions(PosteriorOptions, KLScheduleOptions):
    """How attention is inferred: the options of a run with Bayesian attention weights.

    Args:
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of a LogNormal or Gaussian prior.
        learnable: Train the concentration or scale, one number for all.
        objective: elbo, or evidence: the log evidence by several draws, where the weights are drawn from a prior around
            the scores, whose width the data can tell; it has no KL and no other prior. Refused where the words lie
            in a plate of their own, as in headlines and pretraining.
        draws: Draws of the evidence for each training step; four or more are corrected by the jackknife.
        learned_width: Let the concentration or scale of the evidence be a network of the keys, which starts at that
            number.

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

    def build_scheme(self, **changes: Any) -> "Scheme":
        """The scheme of these options, with ``changes`` to the arguments of :func:`guides.schemes.build_scheme`."""
        from guides.schemes import build_scheme  # which imports torch, and command lines do without

        schedule = {field.name for field in fields(KLScheduleOptions)}
        names = [field.name for field in fields(AlignmentSchemeOptions) if field.name not in schedule]
        options = {name: getattr(self, name) for name in names if hasattr(self, name)}
        if "kl_weight" not in changes:
            options["kl_weight"] = self.annealed(self.kl_weight)
        return build_scheme(options.pop("guide"), **(options | changes))


@dataclass(frozen=True, kw_only=True)
class AlignmentSchemeOptions(SchemeOptions):
    """:class:`SchemeOptions` of a run whose attention may be a categorical alignment too.

    Args:
        guide: Inference scheme; soft is ordinary deterministic attention.
        prior: fixed, contextual (read off the keys), or contextual_as_printed (as the paper's text has it), for
            weibull, lognormal and gamma; the first two for gaussian.
        kl_weight: Weight of the KL; schemes that sum alignments out have weight 1.
        temperature: Temperature of the relaxed alignments of gumbel.
        particles: Samples of wake_sleep and iwae.
        top_k: Most keys of an alignment of sparse_marginal and sparse_enum; as many as sparsemax has when omitted.
        roulette: Of the alignments that are summed out, those with a posterior probability below this are left out of
            the gradient of the words at random, and count for more where they stay (Russian roulette): unbiased, and
            a step of a trained network is faster; 0.001 is a good value. 0 leaves out none.
    """

    temperature: PositiveFloat = 0.5
    particles: PositiveInt = 5
    top_k: PositiveInt | None = None
    roulette: NonNegativeFloat = 0.0
