"""Options of the scripts on coverage."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.harness.cli import Command
from experiments.harness.options import Dropout, StudyOptions, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class CoverageConfig(TrainingOptions):
    """Train a network on data whose attention weights are known, and count how often its intervals hold them.

    Args:
        toy: noise, where weights are random and their spread depends on the query; ignorance, where they follow from
            scores that have to be learned from few items.
        items: Training items.
        form: In ignorance, standard deviation of the entries of the matrix that makes the scores.
        objective: soft attention; the ELBO, with a fixed prior; or the log evidence by several draws.
        family: Distribution of the random weights.
        width: Spread of the random weights: fixed, one that is learned, or a network of the query.
        spread: Standard deviation of log S, at the start where it is learned.
        kl_weight: Weight of the KL, which the ELBO alone has.
        draws: Draws of the evidence for each training step.
        noise: Standard deviation of an observation: known, one that is learned, or a network of the query.
        dropout: Of the projected queries and keys.
        members: Networks of an ensemble, in ignorance each trained on a bootstrap sample of the items.
        laplace: Count with a Laplace approximation of the queries' projection, too.
        batch_size: Items of a batch.
        repeats: Passes over the items in an epoch.
        num_samples: Draws of every test item.
    """

    toy: Literal["noise", "ignorance"] = "noise"
    items: PositiveInt = 20_000
    form: PositiveFloat = 0.5
    objective: Literal["soft", "elbo", "evidence"] = "evidence"
    family: Literal["lognormal", "weibull"] = "lognormal"
    width: Literal["fixed", "one", "network"] = "network"
    spread: PositiveFloat = 1.0
    kl_weight: NonNegativeFloat = 1.0
    draws: PositiveInt = 128
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
        "kl_weight": {"objective": ("elbo",)},
        "draws": {"objective": ("evidence",)},
    }


COMMANDS = {
    "train": Command(CoverageConfig, "experiments.coverage.task:train"),
    "table": Command(StudyOptions, "experiments.coverage.studies:table", training=CoverageConfig),
}
