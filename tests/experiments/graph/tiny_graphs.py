"""Files of tiny graphs in the format of the citation graphs."""

from pathlib import Path

import numpy as np


def write_citations(folder: Path, *, name: str = "cora", classes: int = 7, **changes: np.ndarray) -> None:
    """Write a ring of 42 nodes, each with a feature for its class and some noise."""
    nodes = 42
    generator = np.random.default_rng(0)
    labels = np.arange(nodes) % classes
    values = generator.random((nodes, 9), dtype=np.float32)
    values[np.arange(nodes), labels] += 2
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + classes) % nodes])
    arrays = {
        "x_data": values.flatten(),
        "x_indices": np.tile(np.arange(9), nodes),
        "x_indptr": 9 * np.arange(nodes + 1),
        "x_shape": np.array([nodes, 20]),  # columns that noise can move features to
        "y": labels,
        "edge_index": np.concatenate([ring, ring[::-1]], axis=1),
    }
    arrays |= {f"{split}_mask": np.arange(nodes) // 14 == place for place, split in enumerate(("train", "val", "test"))}
    np.savez(folder / f"{name}.npz", **arrays | changes)
