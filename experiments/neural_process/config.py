"""Options of the study of neural processes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jsonargparse.typing import NonNegativeFloat, PositiveFloat, PositiveInt

from experiments.cli import Command
from experiments.options import StudyOptions, TrainingOptions
from guides.options import KLScheduleOptions


@dataclass(frozen=True, kw_only=True)
class NeuralProcessConfig(TrainingOptions, KLScheduleOptions):
    """Train an attentive neural process on functions of Gaussian processes.

    Args:
        scores: Products of queries and keys; distances, with a learned bandwidth a head; or products that are
            normalised over the heads before they are over the context points.
        objective: soft attention; the ELBO of Weibull weights; or the log evidence of LogNormal weights, whose width is
            a network of the query, by several draws for the whole target set of a function.
        concentration: Concentration of the Weibull weights.
        kl_weight: Weight of the KL, which the ELBO alone has.
        draws: Draws of the evidence for each training step.
        functions: Training functions.
        batch_size: Functions of a batch.
        steps: Training steps.
        max_epochs: Parts of them, each of which ends with a checkpoint.
        num_samples: Draws of every test function.
    """

    scores: Literal["product", "distance", "heads"] = "product"
    objective: Literal["soft", "elbo", "evidence"] = "soft"
    concentration: PositiveFloat = 300.0
    kl_weight: NonNegativeFloat = 2e-4
    draws: PositiveInt = 8
    functions: PositiveInt = 8000
    batch_size: PositiveInt = 8
    steps: PositiveInt = 3000
    learning_rate: PositiveFloat = 3e-3
    max_epochs: PositiveInt = 5
    num_samples: PositiveInt = 32

    planned = True  # the learning rate is, over all epochs
    USED_BY: ClassVar = {
        **{name: {"objective": ("elbo",)} for name in ("concentration", "kl_weight", "kl_schedule")},
        "kl_steps": {"objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
        "draws": {"objective": ("evidence",)},
    }


COMMANDS = {
    "table": Command(StudyOptions, "experiments.neural_process.studies:table", training=NeuralProcessConfig),
}
