"""Options of the node classification script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from experiments.datasets.graphs import GraphName
from experiments.options import Dropout, RunOptions
from experiments.training import Precision
from guides import PriorName, WeightsSchemeName
from pyro_attention.schedules import Constant, Cyclical, Linear, Sigmoid

__all__ = ["GraphConfig", "NormalizerName", "ScheduleName", "kl_schedule"]

NormalizerName = Literal["softmax", "doubly_normalized", "hybrid"]
ScheduleName = Literal["constant", "linear", "sigmoid", "cyclical"]


@dataclass(frozen=True, kw_only=True)
class GraphConfig(RunOptions):
    """Train a graph attention network and evaluate its best epoch on the test nodes.

    Args:
        dataset: The graph.
        guide: Posterior of the attention; soft is ordinary deterministic attention.
        normalizer: What makes weights of positive numbers: a softmax over the neighbours; doubly_normalized, first over
            the nodes that attend to a neighbour; hybrid, a trained mixture of both.
        prior: fixed, or contextual (read off the keys); of no account with guide soft, which has no KL.
        kl_weight: Weight of the KL summed over edges, heads and layers, in the ELBO summed over labelled nodes.
        kl_schedule: How the weight develops over the training steps.
        kl_steps: Steps until the linear weight is full, or the period of the cyclical one.
        kl_rate: Rate of the sigmoid weight, which starts at a half.
        concentration: Concentration of a Weibull or Gamma posterior; the larger, the less noise.
        scale: Standard deviation of a LogNormal posterior.
        prior_rate: Rate of a Gamma prior.
        prior_scale: Standard deviation of a LogNormal prior.
        learnable: Train the posterior's concentration or scale.
        hidden: Width of a hidden head.
        heads: Number of hidden heads.
        dropout: Dropout of the inputs of both layers and of the attention weights.
        learning_rate: Learning rate of Adam.
        weight_decay: L2 penalty on every parameter.
        max_epochs: Epochs at most.
        patience: Epochs without as good a validation accuracy or loss before training stops.
        num_samples: Samples of a prediction.
        precision: Arithmetic of the training; evaluation is in 32 bits.
        seed: Seed of the initial weights and of all noise.
        split_seed: Seed of the split of digits and dblp.
        labels_per_class: Training labels kept in each class, drawn by the seed; all when omitted.
        feature_noise: Fraction of the non-zero features that move to a random place in their row, drawn by the seed.
        edge_noise: Random edges added, as a fraction of the edges there are, drawn by the seed.
    """

    dataset: GraphName = "digits"
    guide: WeightsSchemeName = "weibull"
    normalizer: NormalizerName = "softmax"
    prior: PriorName = "contextual"
    kl_weight: NonNegativeFloat = 1e-3  # type: ignore[valid-type]
    kl_schedule: ScheduleName = "constant"
    kl_steps: PositiveInt = 100  # type: ignore[valid-type]
    kl_rate: NonNegativeFloat = 1.0  # type: ignore[valid-type]
    concentration: PositiveFloat = 10.0  # type: ignore[valid-type]
    scale: PositiveFloat = 0.1  # type: ignore[valid-type]
    prior_rate: PositiveFloat = 1.0  # type: ignore[valid-type]
    prior_scale: PositiveFloat = 1.0  # type: ignore[valid-type]
    learnable: bool = False
    hidden: PositiveInt = 8  # type: ignore[valid-type]
    heads: PositiveInt = 8  # type: ignore[valid-type]
    dropout: Dropout = 0.6  # type: ignore[valid-type]
    learning_rate: PositiveFloat = 0.005  # type: ignore[valid-type]
    weight_decay: NonNegativeFloat = 5e-4  # type: ignore[valid-type]
    max_epochs: PositiveInt = 1000  # type: ignore[valid-type]
    patience: PositiveInt = 100  # type: ignore[valid-type]
    num_samples: PositiveInt = 50  # type: ignore[valid-type]
    precision: Precision = "32"
    seed: NonNegativeInt = 0  # type: ignore[valid-type]
    split_seed: NonNegativeInt = 0  # type: ignore[valid-type]
    labels_per_class: PositiveInt | None = None  # type: ignore[valid-type]
    feature_noise: ClosedUnitInterval = 0.0  # type: ignore[valid-type]
    edge_noise: NonNegativeFloat = 0.0  # type: ignore[valid-type]


def kl_schedule(config: GraphConfig) -> Callable[[int], float]:
    """The KL weight as a function of the training step."""
    weight = config.kl_weight
    schedules: dict[ScheduleName, Callable[[], Callable[[int], float]]] = {
        "constant": lambda: Constant(weight),
        "linear": lambda: Linear(config.kl_steps, weight=weight),
        "sigmoid": lambda: Sigmoid(config.kl_rate, weight=weight),
        "cyclical": lambda: Cyclical(config.kl_steps, weight=weight),
    }
    return schedules[config.kl_schedule]()
