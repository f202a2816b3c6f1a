"""Arrays in numpy's files, read without pickles, and large ones that are made once and then read from disk."""

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from experiments.files import locked, read_json, reading, remove_partials, write_atomic

__all__ = ["cached_array", "checksum", "map_array", "read_arrays"]

_FORMAT = 2  # arrays of format 1 may be blank in part: two processes could write the same file
_AGAIN = "remove the file, and it is made again"


def read_arrays(path: Path, remedy: str = "replace it by an intact copy") -> dict[str, np.ndarray]:
    """Read all arrays of a .npz archive, in the byte order of this machine; DamagedFileError where it is none."""
    # opened here, because a damaged archive leaves the file open that numpy opens
    with (
        reading(path, "a numpy archive without pickles", remedy),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in archive.items()}


def map_array(path: Path, remedy: str = "replace it by an intact copy") -> np.ndarray:
    """Map a .npy file into memory: its pages are read when they are wanted, and changes are not written.

    Raises:
        DamagedFileError: the file is missing or damaged, or holds pickles.
    """
    with reading(path, "an array of numpy without pickles", remedy):
        array: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        return array


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

    Two files are kept: the numbers (.npy without pickles), whose pages are read when they are wanted, and the key and
    notes beside it (.json). Whenever the process dies, both are whole, or the array is made again. Of several processes
    one makes it, and the others wait for it.

    Args:
        folder: where to keep it.
        name: beginning of the file's name; the rest is a checksum of the key.
        key: all that the array is made of, as JSON has it.
        length: size of the first dimension.
        make: makes the pieces, which are joined along the first dimension.
        notes: what to tell about the array; `make` may fill it in.

    Raises:
        DamagedFileError: a file is damaged; the message names it.
        UserError: the file cannot be written.
    """
    path = folder / f"{name}-{sha256(json.dumps([_FORMAT, key]).encode()).hexdigest()[:16]}.npy"
    record = path.with_suffix(".json")
    if not (path.is_file() and record.is_file()):
        with locked(path):
            if not (path.is_file() and record.is_file()):  # no other process has made it meanwhile
                remove_partials(record)
                write_atomic(path, lambda file: _write(file, length, make()))
                text = json.dumps({"key": key, "notes": notes or {}}, indent=2)
                write_atomic(record, lambda file: file.write(text.encode()))
    # torch warns of arrays that cannot be written to; changes of this one would stay in memory
    return torch.from_numpy(map_array(path, _AGAIN)), read_json(record, _AGAIN)["notes"]


def _write(file: IO[bytes], length: int, pieces: Iterator[np.ndarray]) -> None:
    written, kind = 0, None
    for piece in pieces:
        found = piece.dtype, piece.shape[1:]
        if kind is None:
            kind = found
            header = {"descr": np.lib.format.dtype_to_descr(piece.dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, header | {"shape": (length, *piece.shape[1:])})
        if found != kind:
            raise ValueError(f"rows of {found} were made; expected {kind} as before")
        file.write(piece.tobytes())
        written += len(piece)
    if written != length:
        raise ValueError(f"{written} rows were made; expected {length}")
