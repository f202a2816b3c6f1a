"""Graphs for node classification, by name."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.graphs.data import GRAPHS, GraphData, GraphDataError, check_graph
from experiments.datasets.names import GraphName
from experiments.datasets.places import data_folder

__all__ = ["GraphData", "GraphDataError", "GraphName", "check_graph", "load_graph"]

import_readers("experiments.datasets.graphs.readers")


def load_graph(name: GraphName, *, data_root: Path | str | None = None, split_seed: int = 0) -> GraphData:
    """Load a graph for node classification.

    The module of a data set in `experiments.datasets.graphs.readers` tells what it holds and where its files lie.

    The seed is that of the split where it is random, the number of the split where there are several, and 0 where there
    is one.

    Raises:
        FileNotFoundError: the files are in none of the places looked at, and cannot be fetched.
        ValueError: an unknown name, a seed for a fixed split, or a file that is damaged or of another format.
    """
    return GRAPHS[name](data_folder(data_root), split_seed)
