"""Options of the scripts on reasons that are known."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeFloat, NonNegativeInt, PositiveInt

from experiments.cli import Command
from experiments.options import RunOptions, StudyOptions

_GRAPHS = ("neighbor", "houses", "cora")


@dataclass(frozen=True, kw_only=True)
class ReasonConfig(RunOptions):
    """Train a network on data whose reasons are known, and score every explanation of its answers.

    Args:
        problem: neighbor, a graph where the class of one neighbor is a node's label; houses and cora, graphs with edges
            at random among the real ones; bags, bags of handwritten digits whose label says whether they hold a nine.
        guide: Inference of the attention. soft is also explained by PyG's explainers; weibull is for neighbor and bags.
        pooling: Pooling of a bag: attention, or the largest logit of an instance.
        kl_weight: Weight of the KL of weibull.
        steps: Training steps of a network.
        flipped: Share of the training labels that are drawn anew.
        nodes: Nodes of a graph.
        explainer_epochs: Steps of GNNExplainer.
        bags: Training bags, of which a fifth is held out in turn.
        seed: Seed of data and network.
        device: Where to compute: the processor in either case, as these networks are small.
    """

    problem: Literal["neighbor", "houses", "cora", "bags"] = "neighbor"
    guide: Literal["soft", "weibull", "marginal"] = "marginal"
    pooling: Literal["attention", "max"] = "attention"
    kl_weight: NonNegativeFloat = 0.01
    steps: PositiveInt = 300
    flipped: ClosedUnitInterval = 0.0
    nodes: PositiveInt = 600
    explainer_epochs: PositiveInt = 200
    bags: PositiveInt = 100
    seed: NonNegativeInt = 0
    device: Literal["auto", "cpu"] = "auto"

    USED_BY: ClassVar = {
        "pooling": {"problem": ("bags",)},
        "kl_weight": {"guide": ("weibull",)},
        "flipped": {"problem": ("neighbor",)},
        "nodes": {"problem": ("neighbor",)},
        "explainer_epochs": {"problem": _GRAPHS, "guide": ("soft",)},
        "bags": {"problem": ("bags",)},
    }


COMMANDS = {
    "train": Command(ReasonConfig, "experiments.reasons.task:train"),
    "table": Command(StudyOptions, "experiments.reasons.studies:table", training=ReasonConfig),
}
