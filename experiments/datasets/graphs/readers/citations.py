"""Cora, Citeseer and PubMed with their public split.

Read is NAME.npz or planetoid/NAME.npz, else the original files ind.NAME.* in planetoid/raw, planetoid, raw or the
folder of the data sets; what is missing is fetched from the repository of the split's authors.

Source:
    Yang, Cohen and Salakhutdinov, Revisiting Semi-Supervised Learning with Graph Embeddings, 2016.
"""

from functools import partial
from pathlib import Path

from experiments.datasets.graphs.archive import find_archive, read_graph_archive
from experiments.datasets.graphs.data import GRAPHS, GraphData
from experiments.datasets.graphs.planetoid import find_planetoid, read_planetoid


def read_citations(root: Path, split_seed: int, *, name: str, num_classes: int) -> GraphData:
    """Read one of the graphs; original files that are missing are fetched."""
    if split_seed != 0:
        raise ValueError(f"split_seed={split_seed}, but the split of {name!r} is fixed; expected 0")
    path, looked = find_archive(name, [root, root / "planetoid"])
    if path is not None:
        return read_graph_archive(path, name, num_classes=num_classes)
    try:
        folder = find_planetoid(root, name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} A single file would do as well: {looked}") from error
    return read_planetoid(folder, name, num_classes=num_classes)


for _name, _classes in {"cora": 7, "citeseer": 6, "pubmed": 3}.items():
    GRAPHS.register(_name)(partial(read_citations, name=_name, num_classes=_classes))
