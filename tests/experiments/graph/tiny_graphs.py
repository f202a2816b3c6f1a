"""Files of tiny graphs in the format of the citation graphs."""

import pickle
from pathlib import Path

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
