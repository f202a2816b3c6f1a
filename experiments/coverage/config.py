"""Options of the scripts on coverage."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import Dropout, StudyOptions, TrainingOptions
from guides.options import KLScheduleOptions

Toy = Literal[
    "noise", "ignorance", "binomial", "laplace", "gamma", "sharp", "classes", "multinomial", "poisson", "correlated"
]


@dataclass(frozen=True, kw_only=True)
class CoverageConfig(TrainingOptions, KLScheduleOptions):
    """Train a network on data whose attention weights are known, and count how often its intervals hold them.

    Args:
        toy: noise, where weights are random and their spread depends on the query; ignorance, where they follow from
            scores that have to be learned from few items; or one of problems.py, where weights are random as in noise.
        items: Training items.
        form: In ignorance, standard deviation of the entries of the matrix that makes the scores.
        objective: soft attention; the ELBO, with a fixed prior; or the log evidence by several draws.
        family: Distribution of the random weights.
        width: Spread of the random weights: fixed, one that is learned, or a network of the query.
        spread: Standard deviation of log S, at the start where it is learned.
        kl_weight: Weight of the KL, which the ELBO alone has.
        draws: Draws of the evidence for each training step.
        correction: Of the evidence: by the jackknife over the draws, or none.
        check: Ask whether the widths of the evidence can be believed, too, by check_width.
        noise: Standard deviation of an observation: known, one that is learned, or a network of the query.
        dropout: Of the projected queries and keys.
        members: Networks of an ensemble, in ignorance each trained on a bootstrap sample of the items.
        laplace: Count with a Laplace approximation of the queries' projection, too.
        batch_size: Items of a batch.
        repeats: Passes over the items in an epoch.
        num_samples: Draws of every test item.
    """

    toy: Toy = "noise"
    items: PositiveInt = 20_000
    form: PositiveFloat = 0.5
    objective: Literal["soft", "elbo", "evidence"] = "evidence"
    family: Literal["lognormal", "weibull"] = "lognormal"
    width: Literal["fixed", "one", "network"] = "network"
    spread: PositiveFloat = 1.0
    kl_weight: NonNegativeFloat = 1.0
    draws: PositiveInt = 16
    correction: Literal["jackknife", "none"] = "jackknife"
    check: bool = False
    noise: Literal["known", "one", "network"] = "network"
    dropout: Dropout = 0.0
    members: PositiveInt = 1
    laplace: bool = False
    batch_size: PositiveInt = 64
    repeats: PositiveInt = 1
    learning_rate: PositiveFloat = 0.01
    max_epochs: PositiveInt = 2
    num_samples: PositiveInt = 1000

    planned = True  # the learning rate is, over all epochs
    USED_BY: ClassVar = {
        "form": {"toy": ("ignorance",)},
        **{name: {"objective": ("elbo", "evidence")} for name in ("family", "width", "spread")},
        **{name: {"objective": ("elbo",)} for name in ("kl_weight", "kl_schedule")},
        "kl_steps": {"objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
        **{name: {"objective": ("evidence",)} for name in ("draws", "correction", "check")},
    }


COMMANDS = {
    "train": Command(CoverageConfig, "experiments.coverage.task:train"),
    "table": Command(StudyOptions, "experiments.coverage.studies:table", training=CoverageConfig),
}
