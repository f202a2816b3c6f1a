"""Large arrays that are made piece by piece, once, and then read from disk."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from experiments.datasets.safe_arrays import map_array
from experiments.files import locked, read_json, remove_partials, write_atomic

__all__ = ["cached_array", "checksum"]

_FORMAT = 2  # arrays of format 1 may be blank in part: two processes could write the same file
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
    row: Sequence[int | None],
    dtype: np.dtype[Any],
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
        row: sizes of the other dimensions, None where any will do.
        dtype: type of the numbers.
        notes: what to tell about the array; `make` may fill it in.

    Raises:
        ValueError: the file is damaged, made of something else or of another size or type; the message names it.
        UserError: the file cannot be written.
    """
    path = folder / f"{name}-{sha256(json.dumps([_FORMAT, key]).encode()).hexdigest()[:16]}.npy"
    record = path.with_suffix(".json")
    if not (path.is_file() and record.is_file()):
        with locked(path):
            if not (path.is_file() and record.is_file()):  # no other process has made it meanwhile
                remove_partials(record)
                write_atomic(path, lambda file: _write(file, length, make(), row, dtype))
                shape = list(np.load(path, mmap_mode="r", allow_pickle=False).shape)
                text = json.dumps({"key": key, "shape": shape, "notes": notes or {}}, indent=2)
                write_atomic(record, lambda file: file.write(text.encode()))
    try:
        saved = read_json(record, _AGAIN)
        found, shape, told = dict(saved["key"]), list(saved["shape"]), dict(saved["notes"])
        # mode "c": changes would stay in memory; torch warns of arrays that cannot be written to
        array = torch.from_numpy(map_array(path))
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: it or {record.name} is damaged: {error!r}. {_AGAIN}") from error
    differing = [f"{what} {found.get(what)} instead of {key[what]}" for what in key if found.get(what) != key[what]]
    if list(array.shape) != shape or not _fits(array.numpy(), (length, *row), dtype):
        differing.append(f"{array.numpy().dtype} {list(array.shape)} instead of {_text((length, *row), dtype)}")
    if differing:
        raise ValueError(f"{path}: made of something else ({', '.join(differing)}). {_AGAIN}")
    return array, told


def _write(
    file: IO[bytes], length: int, pieces: Iterator[np.ndarray], row: Sequence[int | None], dtype: np.dtype[Any]
) -> None:
    written = 0
    for piece in pieces:
        if not _fits(piece, (None, *row), dtype):
            raise ValueError(f"{piece.dtype} {list(piece.shape)} was made; expected {_text((None, *row), dtype)}")
        if not written:
            row = piece.shape[1:]  # of all others too
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length, *row)}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(piece.tobytes())
        written += len(piece)
    if written != length:
        raise ValueError(f"{written} rows were made; expected {length}")


def _fits(array: np.ndarray, shape: Sequence[int | None], dtype: np.dtype[Any]) -> bool:
    sizes = zip(array.shape, shape, strict=False)
    return array.dtype == dtype and array.ndim == len(shape) and all(wanted in (None, size) for size, wanted in sizes)


def _text(shape: Sequence[int | None], dtype: np.dtype[Any]) -> str:
    return f"{dtype} [{', '.join('any' if size is None else str(size) for size in shape)}]"
