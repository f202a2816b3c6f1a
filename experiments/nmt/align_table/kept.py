"""What the baselines say of the gold sentences, kept on disk: a table that goes on trains none of them again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.datasets.arrays import read_arrays
from experiments.datasets.text.parallel_text import ParallelText
from experiments.files import reading, remove_partials, write_atomic
from experiments.nmt.align_table.aligned import Aligned, aligned_words, word_pairs

__all__ = ["fingerprint", "kept"]

_SIDES = ("forward", "backward")


def fingerprint(name: str, train: ParallelText, test: ParallelText, *, with_test: bool) -> str:
    """SHA-256 of all that the links of a baseline depend on: its name, its texts and whether it sees both."""
    content = [name, with_test, *(sentences for text in (train, test) for sentences in (text.source, text.target))]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def kept(path: Path, key: str, test: ParallelText, make: Callable[[], Aligned]) -> Aligned:
    """The alignments in a file, where it was written with this key; else those that are made, written into the file.

    Raises:
        UserError: The file is damaged, or cannot be written.
    """
    found = _read(path, key, test) if path.is_file() else None
    if found is None:
        remove_partials(path)  # of a process that was killed; the table's folder is held by this one
        found = make()
        _write(path, key, found)
    return found


def _write(path: Path, key: str, aligned: Aligned) -> None:
    weights = zip(_SIDES, zip(*aligned.posterior, strict=True), strict=True)
    arrays: dict[str, Any] = {side: torch.cat([one.flatten() for one in found]).numpy() for side, found in weights}
    write_atomic(path, lambda file: np.savez_compressed(file, key=np.array(key), **arrays))


def _read(path: Path, key: str, test: ParallelText) -> Aligned | None:
    """The alignments of a file; None where it has another key."""
    remedy = "remove it, and the same command with --resume makes it again"
    with reading(path, "the links of a baseline", remedy):
        arrays = read_arrays(path, remedy)
        if arrays["key"].item() != key:
            return None
        flat = [torch.from_numpy(arrays[side]) for side in _SIDES]
        pairs = word_pairs(test)
        sizes = [(len(target), len(source)) for source, target in pairs]
        turned = [(length, width) for width, length in sizes]
        return aligned_words(pairs, _divided(flat[0], sizes), _divided(flat[1], turned))


def _divided(flat: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    parts = flat.split([rows * columns for rows, columns in sizes])
    return [part.view(size) for part, size in zip(parts, sizes, strict=True)]
