"""DBLP, a larger citation graph, from dblp.npz, graphs-extra/dblp.npz or planetoid/dblp.npz.

The split is random: 20 nodes of a class for training, 500 for validation, 1000 for testing.

Source:
    Bojchevski and Günnemann, Deep Gaussian Embedding of Graphs, 2018.
"""

from pathlib import Path

from experiments.datasets.graphs.archive import find_archive, read_graph_archive
from experiments.datasets.graphs.data import GRAPHS, GraphData
from experiments.datasets.places import OTHER_FOLDER


@GRAPHS.register("dblp")
def read_dblp(root: Path, split_seed: int) -> GraphData:
    """Read the graph, and draw its split."""
    folders = [root, root / "graphs-extra", root / "planetoid"]
    path, error = find_archive("dblp", folders, split=False)
    if path is None:
        raise FileNotFoundError(f"{error} Put it there, or name its folder by {OTHER_FOLDER}.")
    return read_graph_archive(path, "dblp", num_classes=4, split_seed=split_seed)
