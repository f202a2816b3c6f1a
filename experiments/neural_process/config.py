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
        scores: Attention scores. product multiplies queries and keys; distance has a learned bandwidth for each head;
            heads normalizes products over the heads, and then over the context points.
        objective: Training objective. soft is soft attention; elbo is the ELBO of Weibull weights; evidence is the log
            evidence of LogNormal weights, whose width is a network of the query, by several draws for the whole target
            set of a function.
        concentration: Concentration of the Weibull weights.
        kl_weight: Weight of the KL of the ELBO.
        draws: Number of draws of the evidence in each training step.
        functions: Number of training functions.
        batch_size: Number of functions of a batch.
        steps: Number of training steps.
        max_epochs: Number of parts of the training, each of which ends with a checkpoint.
        num_samples: Number of draws for every test function.
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

    planned = True  # the schedule of the learning rate covers all epochs
    USED_BY: ClassVar = {
        **{name: {"objective": ("elbo",)} for name in ("concentration", "kl_weight", "kl_schedule")},
        "kl_steps": {"objective": ("elbo",), "kl_schedule": ("linear", "sigmoid")},
        "draws": {"objective": ("evidence",)},
    }


COMMANDS = {
    "table": Command(StudyOptions, "experiments.neural_process.studies:table", training=NeuralProcessConfig),
}
