"""Large arrays that are made piece by piece, once, and then read from disk."""

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from experiments.datasets.safe_arrays import map_array
from experiments.datasets.untrusted import read_json
from experiments.results import write_atomic

__all__ = ["cached_array", "checksum"]

_AGAIN = "Remove the file, and it is made again; or name another folder for the cache."


def checksum(tensor: Tensor) -> str:
    """Return the SHA-256 checksum of a tensor's numbers."""
    return sha256(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()


def cached_array(
    folder: Path,
    name: str,
    key: Mapping[str, Any],
    length: int,
    make: Callable[[], Iterator[np.ndarray]],
    *,
    notes: Mapping[str, str] | None = None,
) -> tuple[Tensor, dict[str, str]]:
    """Return an array and notes about it; from disk where they were made with the same key before.

    Two files are kept: the numbers (.npy without pickles) and the key and notes beside it (.json). Whenever the process
    dies, both are whole, or the array is made again.

    Args:
        folder: where to keep it.
        name: beginning of the file's name; the rest is a checksum of the key.
        key: all that the array is made of, as JSON has it.
        length: size of the first dimension.
        make: makes the pieces, which are joined along the first dimension.
        notes: what to tell about the array; `make` may fill it in.

    Returns:
        The array, whose pages are read from disk when they are wanted, and the notes.

    Raises:
        ValueError: the file is damaged or made of something else; the message names it.
    """
    path = folder / f"{name}-{sha256(json.dumps(key).encode()).hexdigest()[:16]}.npy"
    record = path.with_suffix(".json")
    if not (path.is_file() and record.is_file()):
        write_atomic(path, lambda file: _write(file, length, make()))
        text = json.dumps({"key": key, "notes": notes or {}}, indent=2)
        write_atomic(record, lambda file: file.write(text.encode()))
    try:
        saved = read_json(record, expected="a record of an array", remedy=_AGAIN)
        found, told = dict(saved["key"]), dict(saved["notes"])
        # mode "c": changes would stay in memory; torch warns of arrays that cannot be written to
        array = torch.from_numpy(map_array(path))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: it or {record.name} is damaged: {error!r}. {_AGAIN}") from error
    differing = [f"{what} {found.get(what)} instead of {key[what]}" for what in key if found.get(what) != key[what]]
    if differing or len(array) != length:
        seen = ", ".join(differing) or f"{len(array)} rows instead of {length}"
        raise ValueError(f"{path}: made of something else ({seen}). {_AGAIN}")
    return array, told


def _write(file: IO[bytes], length: int, pieces: Iterator[np.ndarray]) -> None:
    first = next(pieces)
    shape, descr = (length, *first.shape[1:]), np.lib.format.dtype_to_descr(first.dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    for piece in chain([first], pieces):
        file.write(piece.tobytes())
