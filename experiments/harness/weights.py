"""The best weights of a run: a safetensors file, which anybody can read without pickle and without Lightning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from experiments.files import UserError, write_atomic

__all__ = ["WEIGHTS", "bad_file", "read_safetensors", "remove_weights", "weights_file", "write_weights"]

WEIGHTS = "checkpoints/best.safetensors"
_OLDER = "checkpoints/best.ckpt"  # of runs from before there was the other one
_CITED = 300  # letters of the error of a library


def weights_file(folder: Path) -> Path:
    """The file with the best weights of the run in a folder: that of an earlier release where it has no other."""
    older = folder / _OLDER
    return older if older.exists() and not (folder / WEIGHTS).exists() else folder / WEIGHTS


def remove_weights(folder: Path) -> None:
    """Remove the best weights of the run in a folder."""
    for name in (WEIGHTS, _OLDER):
        (folder / name).unlink(missing_ok=True)


def write_weights(folder: Path, weights: Mapping[str, Tensor], *, epoch: int) -> None:
    """Write the best weights of the run in a folder.

    Tied weights stand under each of their names. The metadata are the epoch, counted from 0, and a checksum, of which
    the format itself has none.
    """
    # clones: the format refuses tensors that share their numbers
    kept = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    metadata = {"format": "pt", "epoch": str(epoch), "crc32": _checksum(kept)}
    write_atomic(folder / WEIGHTS, lambda file: file.write(safetensors.torch.save(kept, metadata)))
    (folder / _OLDER).unlink(missing_ok=True)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read a file of :func:`write_weights`.

    Raises:
        UserError: The file is missing or damaged, or is no such file.
    """
    try:
        if os.path.lexists(path) and not path.is_file():  # a pipe would be waited for
            raise ValueError("it is a folder, a pipe, a device or a link to nothing")
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
        if metadata.get("crc32") != _checksum(found):
            raise ValueError("the checksum of its weights is wrong")
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; pass --overwrite to train again") from error
    except Exception as error:  # on damaged bytes the reader raises nearly anything
        seen = " ".join(str(error).split())[:_CITED]
        raise bad_file(path, f"it cannot be read ({type(error).__name__}: {seen})") from error
    return found


def bad_file(path: Path, problem: str) -> UserError:
    """The error of a file that is none of ours, or not whole."""
    return UserError(f"{path} is damaged or no checkpoint of this program: {problem}; pass --overwrite to train again")


def _checksum(weights: Mapping[str, Tensor]) -> str:
    found = 0
    for name in sorted(weights):
        found = crc32(weights[name].reshape(-1).view(torch.uint8).numpy().data, crc32(name.encode(), found))
    return f"{found:08x}"
