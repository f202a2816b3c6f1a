"""Options of the studies of known reasons."""

from dataclasses import dataclass
from pathlib import Path

from jsonargparse.typing import PositiveInt

from experiments.harness.cli import Command
from experiments.harness.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class EdgesConfig(RunOptions):
    """Which of a node's neighbors is the reason for its label: attention, PyG's explainers and exact posteriors.

    Args:
        seeds: Seeds of graphs and networks.
        nodes: Nodes of a graph.
        steps: Training steps of a network.
        explainer_epochs: Steps of GNNExplainer.
        results: Folder for the published numbers, experiments/results when omitted.
    """

    seeds: PositiveInt = 5
    nodes: PositiveInt = 600
    steps: PositiveInt = 300
    explainer_epochs: PositiveInt = 200
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class GraphsConfig(RunOptions):
    """Which edges of a graph are real, among edges that were added: attention, GNNExplainer and exact posteriors.

    Args:
        seeds: Seeds of added edges, splits and networks.
        steps: Training steps of a network.
        explainer_epochs: Steps of GNNExplainer.
        results: Folder for the published numbers, experiments/results when omitted.
    """

    seeds: PositiveInt = 5
    steps: PositiveInt = 100
    explainer_epochs: PositiveInt = 100
    results: Path | None = None


@dataclass(frozen=True, kw_only=True)
class BagsConfig(RunOptions):
    """Which image of a bag is the reason for its label: kinds of attention pooling, and max pooling.

    Args:
        seeds: Seeds of bags and networks.
        bags: Numbers of training bags.
        steps: Training steps of a network.
        results: Folder for the published numbers, experiments/results when omitted.
    """

    seeds: PositiveInt = 20
    bags: tuple[PositiveInt, ...] = (50, 100, 200)
    steps: PositiveInt = 100
    results: Path | None = None


COMMANDS = {
    "edges": Command(EdgesConfig, "experiments.reasons.edges:run"),
    "graphs": Command(GraphsConfig, "experiments.reasons.graphs:run"),
    "bags": Command(BagsConfig, "experiments.reasons.bags:run"),
}
