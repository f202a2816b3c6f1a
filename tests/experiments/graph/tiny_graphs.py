"""Files of tiny graphs: in the format of the citation graphs, and with several splits as masks."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix


def write_citations(folder: Path, *, name: str = "cora", classes: int = 7) -> None:
    """Write a ring of 42 nodes, each with a feature for its class and some noise; 14 to train on, 14 to test."""
    nodes = 42
    values = np.zeros((nodes, 20), dtype=np.float32)  # with columns that noise can move features to
    values[:, :9] = np.random.default_rng(0).random((nodes, 9), dtype=np.float32)
    labels = np.arange(nodes) % classes
    values[np.arange(nodes), labels] += 2
    answers = np.eye(classes, dtype=np.int32)[labels]
    parts = {
        "y": answers[:14],
        "allx": csr_matrix(values[:28]),
        "ally": answers[:28],
        "tx": csr_matrix(values[28:]),
        "ty": answers[28:],
        "graph": {node: [(node + classes) % nodes] for node in range(nodes)},
    }
    raw = folder / "planetoid" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, value in parts.items():
        (raw / f"ind.{name}.{part}").write_bytes(pickle.dumps(value))
    (raw / f"ind.{name}.test.index").write_text("".join(f"{node}\n" for node in range(28, nodes)))


def write_splits(path: Path, *, classes: int = 2, splits: int = 2, **changes: Any) -> Path:
    """Write a ring of 40 nodes, most of whose neighbors are of another class, with as many splits."""
    nodes = 40
    generator = np.random.default_rng(0)
    labels = np.arange(nodes) % classes
    features = generator.random((nodes, 6), dtype=np.float32)
    features[np.arange(nodes), labels] += 1
    order = np.stack([generator.permutation(nodes) for _ in range(splits)])
    parts = {"train": slice(0, 20), "val": slice(20, 30), "test": slice(30, 40)}
    arrays = {
        "y": labels,
        "edge_index": np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes]),
        "x": features,
    }
    for name, part in parts.items():
        arrays[f"{name}_mask"] = np.stack([np.isin(np.arange(nodes), one[part]) for one in order])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays | changes)
    return path
