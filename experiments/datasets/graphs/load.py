"""Graphs for node classification: handwritten digits (embedded), three citation graphs and DBLP's."""

from pathlib import Path
from typing import get_args

import torch
from sklearn.datasets import load_digits

from experiments.datasets.graphs.archive import archive_keys, read_graph_archive
from experiments.datasets.graphs.data import GraphData, GraphDataError, check_graph
from experiments.datasets.graphs.parts import random_split
from experiments.datasets.graphs.planetoid import read_planetoid
from experiments.datasets.graphs.planetoid_files import find_planetoid
from experiments.datasets.names import GraphName
from experiments.datasets.places import OTHER_FOLDER, data_folder
from experiments.datasets.untrusted import is_there

__all__ = ["GraphData", "GraphDataError", "GraphName", "check_graph", "load_graph"]


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
    if name not in get_args(GraphName):
        raise ValueError(f"no graph is named {name!r}; expected one of {', '.join(get_args(GraphName))}")
    if name == "digits":
        return _digits(split_seed)
    if split_seed != 0 and name != "dblp":
        raise ValueError(f"split_seed={split_seed}, but the split of {name!r} is fixed; expected 0")
    root = data_folder(data_root)
    folders = [root, root / "graphs-extra", root / "planetoid"] if name == "dblp" else [root, root / "planetoid"]
    places = [folder / f"{name}.npz" for folder in folders]
    for path in places:
        if is_there(path):
            return read_graph_archive(path, name, split_seed=split_seed if name == "dblp" else None)
    missing = (
        f"{name}.npz is missing; looked at {' and '.join(map(str, places))}; expected a numpy archive with the keys "
        f"{', '.join(archive_keys(split=name != 'dblp'))}."
    )
    if name == "dblp":
        raise FileNotFoundError(f"{missing} Put it there, or name its folder by {OTHER_FOLDER}.")
    try:
        folder = find_planetoid(root, name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} A single file would do as well: {missing}") from error
    return read_planetoid(folder, name)


def _digits(split_seed: int, neighbours: int = 10, per_class: int = 20, validation: int = 500) -> GraphData:
    """Make the digits graph."""
    digits = load_digits()
    pixels, labels = torch.from_numpy(digits.data), torch.from_numpy(digits.target).long()
    # Not scikit-learn's kneighbors_graph: it leaves the order of equally distant neighbours open. Distances
    # of whole-number pixels are exact in float64: with a stable sort every machine builds the same graph.
    distances = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf)
    nearest = distances.argsort(dim=1, stable=True)[:, :neighbours]
    edges = torch.stack([nearest.flatten(), torch.arange(len(labels)).repeat_interleave(neighbours)])

    return GraphData(
        name="digits",
        features=(pixels / 16).float(),
        labels=labels,
        edge_index=torch.cat([edges, edges.flip(0)], 1).unique(dim=1),
        **random_split(labels, split_seed, per_class=per_class, validation=validation),
        num_classes=10,
        images=torch.from_numpy(digits.images / 16).float(),
    )
