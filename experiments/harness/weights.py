"""The best weights of a run: a safetensors file, which anybody can read without pickle and without Lightning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from experiments.files import reading, write_atomic

AGAIN = "pass --overwrite to train again"

WEIGHTS = "checkpoints/best.safetensors"
_OLDER = "checkpoints/best.ckpt"  # of runs from before there was the other one


def weights_file(folder: Path) -> Path:
    """The file with the best weights of the run in a folder: that of an earlier release where it has no other."""
    older = folder / _OLDER
    return older if older.exists() and not (folder / WEIGHTS).exists() else folder / WEIGHTS


def remove_weights(folder: Path) -> None:
    """Remove the best weights of the run in a folder."""
    for name in (WEIGHTS, _OLDER):
        (folder / name).unlink(missing_ok=True)


def write_weights(folder: Path, weights: Mapping[str, Tensor], *, epoch: int) -> None:
    """Write the best weights of the run in a folder, and of which epoch they are, counted from 0.

    Tied weights stand under each of their names.
    """
    # clones: the format refuses tensors that share their numbers
    kept = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    metadata = {"format": "pt", "epoch": str(epoch)}
    write_atomic(folder / WEIGHTS, lambda file: file.write(safetensors.torch.save(kept, metadata)))
    (folder / _OLDER).unlink(missing_ok=True)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read best.safetensors, or best.ckpt of an earlier release; DamagedFileError where it is missing or damaged."""
    with reading(path, "the weights of a run", AGAIN):
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True)["state_dict"])
