"""Write a graph of PyTorch Geometric as a file that ``experiments.graph --graph`` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from experiments.data.graphs.load import MetricName
from experiments.data.storage import SPLITS
from experiments.files import write_atomic


class NodeGraph(Protocol):
    """Graph with features and classes of its nodes, such as ``torch_geometric.data.Data``.

    Its masks ``train_mask``, ``val_mask`` and ``test_mask``, if there are any, are ``[nodes]`` or ``[nodes, splits]``.
    """

    x: Tensor | None  # [nodes, features]
    y: Tensor | None  # [nodes] or [nodes, 1], integers from 0, -1 where the class is not known
    edge_index: Tensor | None  # [2, edges]


def save_graph(path: str | Path, graph: NodeGraph, *, metric: MetricName = "accuracy", overwrite: bool = False) -> None:
    """Write a graph of PyTorch Geometric as an archive of NumPy, for ``experiments.graph train --graph``.

    Args:
        path: The file, whose name ends with ``.npz``; folders on the way are made.
        graph: A ``torch_geometric.data.Data``, or anything with ``x``, ``y``, ``edge_index`` and, perhaps, masks.
        metric: ``"accuracy"``, or ``"roc_auc"`` for two classes of which one is rare.
        overwrite: Replace a file of that name.

    Raises:
        ValueError: Features, classes or edges are missing or have another shape, classes are no integers, some masks
            are missing, or the name ends otherwise.
        FileExistsError: There is such a file, and ``overwrite`` is False.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> ring = torch.stack([torch.arange(8), (torch.arange(8) + 1) % 8])
        >>> graph = SimpleNamespace(x=torch.rand(8, 3), y=torch.arange(8) % 2, edge_index=ring)
        >>> path = Path(tempfile.mkdtemp(), "ring.npz")
        >>> save_graph(path, graph)
        >>> sorted(np.load(path))
        ['edge_index', 'metric', 'x', 'y']
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"path is {path}, expected a name that ends with .npz")
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} exists; choose another name, or pass overwrite=True")
    arrays = {name: _array(graph, name) for name in ("x", "y", "edge_index")} | _masks(graph)
    arrays["y"] = arrays["y"].reshape(-1) if arrays["y"].shape[1:] == (1,) else arrays["y"]
    nodes = len(arrays["x"])
    for name, shape in (("x", (nodes, -1)), ("y", (nodes,)), ("edge_index", (2, -1))):
        actual = arrays[name].shape
        if len(actual) != len(shape) or any(size not in (-1, real) for size, real in zip(shape, actual, strict=True)):
            expected = ", ".join("any" if size < 0 else str(size) for size in shape)
            raise ValueError(f"{name} has shape {list(actual)}, expected [{expected}] for {nodes} rows of x")
    if not np.issubdtype(arrays["y"].dtype, np.integer):
        raise ValueError(f"y has {arrays['y'].dtype}, expected integers: the class of every node, -1 where unknown")
    arrays["metric"] = np.array(metric)
    write_atomic(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))


def _array(graph: NodeGraph, name: str) -> np.ndarray:
    value = getattr(graph, name, None)
    if value is None:
        raise ValueError(f"the graph has no {name}, expected x [nodes, features], y [nodes] and edge_index [2, edges]")
    dense = torch.as_tensor(value).detach().cpu()
    return np.asarray((dense.to_dense() if dense.layout != torch.strided else dense).numpy())


def _masks(graph: NodeGraph) -> dict[str, np.ndarray]:
    """Return the masks ``[nodes]`` or ``[splits, nodes]`` by name, none where the graph has none."""
    names = [f"{split}_mask" for split in SPLITS]
    missing = [name for name in names if getattr(graph, name, None) is None]
    if len(missing) == len(names):
        return {}
    if missing:
        there = ", ".join(name for name in names if name not in missing)
        raise ValueError(
            f"the graph has no {', '.join(missing)}, expected all of {', '.join(names)}, or none of them; add "
            f"them, or set {there} to None for a random division"
        )
    return {name: _array(graph, name).T.astype(bool) for name in names}
