"""Files of tiny graphs with several splits as masks."""

from pathlib import Path
from typing import Any

import numpy as np


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
