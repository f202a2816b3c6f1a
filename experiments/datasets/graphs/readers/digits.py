"""scikit-learn's 1797 handwritten digits, each joined to its 10 nearest neighbours; needs no file.

The split is random: 20 nodes of a class for training, 500 for validation, the others for testing.

Source:
    Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from pathlib import Path

import torch
from sklearn.datasets import load_digits

from experiments.datasets.graphs.data import GRAPHS, GraphData
from experiments.datasets.graphs.parts import random_split

NEIGHBOURS, PER_CLASS, VALIDATION = 10, 20, 500


@GRAPHS.register("digits")
def read_digits(_: Path, split_seed: int) -> GraphData:
    """Make the graph of the 1797 digits, each joined to its nearest neighbours."""
    digits = load_digits()
    pixels, labels = torch.from_numpy(digits.data), torch.from_numpy(digits.target).long()
    # Not scikit-learn's kneighbors_graph: it leaves the order of equally distant neighbours open. Distances
    # of whole-number pixels are exact in float64: with a stable sort every machine builds the same graph.
    distances = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf)
    nearest = distances.argsort(dim=1, stable=True)[:, :NEIGHBOURS]
    edges = torch.stack([nearest.flatten(), torch.arange(len(labels)).repeat_interleave(NEIGHBOURS)])

    return GraphData(
        name="digits",
        features=(pixels / 16).float(),
        labels=labels,
        edge_index=torch.cat([edges, edges.flip(0)], 1).unique(dim=1),
        **random_split(labels, split_seed, per_class=PER_CLASS, validation=VALIDATION),
        num_classes=10,
        metric="accuracy",
        images=torch.from_numpy(digits.images / 16).float(),
    )
