"""Graphs for node classification: handwritten digits (embedded), three citation graphs and DBLP's."""

from pathlib import Path

from experiments.datasets.discovery import import_readers
from experiments.datasets.graphs.data import GRAPHS, GraphData, GraphDataError, check_graph
from experiments.datasets.names import GraphName
from experiments.datasets.places import data_folder

__all__ = ["GraphData", "GraphDataError", "GraphName", "check_graph", "load_graph"]

import_readers("experiments.datasets.graphs.readers")


def load_graph(name: GraphName, *, data_root: Path | str | None = None, split_seed: int = 0) -> GraphData:
    """Load a graph for node classification.

    `digits` needs no file: scikit-learn's 1797 handwritten digits, each joined to its 10 nearest neighbours.
    `cora`, `citeseer` and `pubmed` are the citation graphs with their public split; what is not in the folder is
    fetched from the repository of the split's authors. `dblp` is a larger citation graph, only read from a file.
    The features of all but `digits` are row-normalised.

    Args:
        name: "digits", "cora", "citeseer", "pubmed" or "dblp".
        data_root: folder that holds NAME.npz or planetoid/NAME.npz, or the original files ind.NAME.* in
            planetoid/raw, planetoid, raw or itself (for `dblp` dblp.npz, graphs-extra/dblp.npz or
            planetoid/dblp.npz); by default $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention. `digits` does not
            look at it.
        split_seed: seed of the random split of `digits` and `dblp` (20 nodes of a class for training, 500 for
            validation; of `dblp` 1000 for testing, of `digits` the others); the rest have one public split, seed 0.

    Returns:
        The graph, on the CPU.

    Raises:
        FileNotFoundError: the files are in none of the places looked at, and cannot be fetched.
        ValueError: an unknown name, a seed for a fixed split, or a file that is damaged or of another format.

    Example:
        >>> load_graph("digits").features.shape
        torch.Size([1797, 64])

    Source:
        Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998 (from scikit-learn);
        Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016;
        Bojchevski and Günnemann, Deep Gaussian Embedding of Graphs, 2018 (DBLP).
    """
    return GRAPHS[name](data_folder(data_root), split_seed)
