"""Graphs whose neighbours are often of other classes, with ten fixed splits, of which split_seed 0 to 9 chooses one.

Read is heterophilous/NAME.npz, else NAME.npz, with the keys of `experiments.datasets.graphs.masked`, masks
[10, nodes]. Edges of the files are made undirected (both directions of each, once, without self loops), which those of
Texas and Actor are not as first published; features stay as they are. A network on Minesweeper is judged by ROC AUC,
because four of five nodes are no mine. The filtered versions of Chameleon and Squirrel have no duplicate nodes, which
join training and test nodes in the first ones.

Source:
    Pei et al., Geom-GCN, 2020 (actor, texas). Platonov et al., A critical look at the evaluation of GNNs under
    heterophily, 2023 (the others).
"""

from functools import partial
from pathlib import Path

from experiments.datasets.graphs.data import GRAPHS, GraphData
from experiments.datasets.graphs.masked import read_masked_graph
from experiments.datasets.places import NEW_COPY, missing

_CLASSES = {"actor": 5, "texas": 5, "chameleon_filtered": 5, "squirrel_filtered": 5, "minesweeper": 2}


def read_heterophilous(root: Path, split_seed: int, *, name: str) -> GraphData:
    """Read one of the graphs with one of its splits."""
    places = [folder / f"{name}.npz" for folder in (root / "heterophilous", root)]
    path = next(filter(Path.is_file, places), None)
    if path is None:
        keys = "a numpy archive with the keys y, edge_index, x or x_data, x_indices, x_indptr and x_shape, and masks"
        raise missing(" or ".join(map(str, places)), keys, f"heterophilous/{name}.npz")
    return read_masked_graph(
        path, name, split_seed=split_seed, remedy=NEW_COPY, num_classes=_CLASSES[name],
        metric="roc_auc" if name == "minesweeper" else "accuracy",
    )  # fmt: skip


for _name in _CLASSES:
    GRAPHS.register(_name)(partial(read_heterophilous, name=_name))
