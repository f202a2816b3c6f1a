"""Arrays in numpy's files, read without pickles, and large ones that are made once and then read from disk."""

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from experiments.files import locked, reading, write_atomic

_FORMAT = 2  # arrays of format 1 may be blank in part: two processes could write the same file


def read_arrays(path: Path, remedy: str = "replace it by an intact copy") -> dict[str, np.ndarray]:
    """Read all arrays of a .npz archive, in the byte order of this machine; DamagedFileError where it is none."""
    # opened here, because a damaged archive leaves the file open that numpy opens
    with (
        reading(path, "a numpy archive without pickles", remedy),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in archive.items()}


def checksum(tensor: Tensor) -> str:
    """Return the SHA-256 checksum of a tensor's numbers."""
    return sha256(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()


def cached_array(
    folder: Path, name: str, key: Mapping[str, Any], length: int, make: Callable[[], Iterator[np.ndarray]]
) -> Tensor:
    """Return an array; from disk where it was made with the same key before.

    Whenever the process dies, the file is whole, or the array is made again. Of several processes one makes it, and the
    others wait for it.

    The key is all that the array is made of, as JSON has it. `make` gives pieces, which are joined along the first
    dimension, whose size is `length`.
    """
    path = folder / f"{name}-{sha256(json.dumps([_FORMAT, key]).encode()).hexdigest()[:16]}.npy"
    if not path.is_file():
        with locked(path):
            if not path.is_file():  # no other process has made it meanwhile
                write_atomic(path, lambda file: _write(file, length, make()))
    with reading(path, "an array of numpy without pickles", "remove the file, and it is made again"):
        # its pages are read when they are wanted; torch warns of arrays that cannot be written to
        return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))


def _write(file: IO[bytes], length: int, pieces: Iterator[np.ndarray]) -> None:
    first = next(pieces)
    header = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, header | {"shape": (length, *first.shape[1:])})
    for piece in chain([first], pieces):
        file.write(piece.tobytes())
