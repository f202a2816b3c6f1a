"""Options of the studies of known reasons."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jsonargparse.typing import PositiveInt

from experiments.cli import Command
from experiments.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class ReasonOptions(RunOptions):
    """How networks are trained and their reasons published.

    Args:
        seeds: Seeds of data and networks.
        steps: Training steps of a network.
        results: Folder for the published numbers, experiments/results when omitted.
        device: Where to compute; these networks are small, and are trained on the processor alone.
    """

    seeds: PositiveInt = 5
    steps: PositiveInt = 300
    results: Path | None = None
    device: Literal["cpu"] = "cpu"


@dataclass(frozen=True, kw_only=True)
class EdgesConfig(ReasonOptions):
    """Which of a node's neighbors is the reason for its label: attention, PyG's explainers and exact posteriors.

    Args:
        nodes: Nodes of a graph.
        explainer_epochs: Steps of GNNExplainer.
    """

    nodes: PositiveInt = 600
    explainer_epochs: PositiveInt = 200


@dataclass(frozen=True, kw_only=True)
class GraphsConfig(ReasonOptions):
    """Which edges of a graph are real, among edges that were added: attention, GNNExplainer and exact posteriors.

    Args:
        explainer_epochs: Steps of GNNExplainer.
    """

    steps: PositiveInt = 100
    explainer_epochs: PositiveInt = 100


@dataclass(frozen=True, kw_only=True)
class BagsConfig(ReasonOptions):
    """Which image of a bag is the reason for its label: kinds of attention pooling, and max pooling.

    Args:
        bags: Numbers of training bags.
    """

    seeds: PositiveInt = 20
    bags: tuple[PositiveInt, ...] = (50, 100, 200)
    steps: PositiveInt = 100


COMMANDS = {
    "edges": Command(EdgesConfig, "experiments.reasons.edges:run"),
    "graphs": Command(GraphsConfig, "experiments.reasons.edges:run_graphs"),
    "bags": Command(BagsConfig, "experiments.reasons.bags:run"),
}
