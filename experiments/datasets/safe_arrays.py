"""Reading numpy's files without pickles, and only what is as large as its header says."""

import io
import math
import os
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, Literal

import numpy as np

from experiments.datasets.untrusted import MOST_BYTES, clipped, is_there

__all__ = ["map_array", "read_arrays"]

# What zipfile, numpy and Python's parser (of a header) raise on damaged files.
_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    MemoryError,
)
_HEADER_BYTES = 12_000  # numpy itself takes headers of up to 10 000 characters
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_arrays(path: Path, *, remedy: str) -> dict[str, np.ndarray]:
    """Read all arrays of a .npz archive, in the byte order of this machine: numbers, truth values or text.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged, no such archive, larger than MOST_BYTES when unpacked, or holds pickles.
    """
    if not is_there(path):
        raise FileNotFoundError(f"{path} is missing; expected a numpy archive. {remedy}")
    with path.open("rb") as file:  # outside the try: a file that we may not read is not a damaged one
        try:
            return _read_archive(file)
        except _UNREADABLE as error:
            seen = clipped(str(error) or type(error).__name__)
            raise ValueError(f"{path}: {seen}; expected a numpy archive without pickles. {remedy}") from error


def _read_archive(file: IO[bytes]) -> dict[str, np.ndarray]:
    _check_size(os.fstat(file.fileno()).st_size, "the file has")
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_size(sum(member.file_size for member in members), "unpacked, it has")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename or name in arrays:
                raise ValueError(f"an entry {clipped(member.filename)!r} that is no .npy, or there twice")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"entry {clipped(name)!r} is packed in a way that numpy does not use")
            try:
                with archive.open(member) as stream:
                    arrays[name] = _read_array(stream, member.file_size)
            except _UNREADABLE as error:
                raise ValueError(f"entry {clipped(name)!r}: {error or type(error).__name__}") from error
    return arrays


def _check_size(size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"{what} {size} bytes, more than {MOST_BYTES} (MOST_BYTES of untrusted.py)")


# Shape, order, type and place of the numbers of an array.
_Header = tuple[tuple[int, ...], Literal["C", "F"], np.dtype, int]


def _read_array(stream: IO[bytes], size: int) -> np.ndarray:
    head = stream.read(min(size, _HEADER_BYTES))
    shape, order, dtype, offset = _header(head, size)
    # never read(): zipfile would unpack as much as comes, whatever size the archive tells
    content = head[offset:] + stream.read(size - len(head))
    array = np.ndarray(shape, dtype, content, order=order).astype(dtype.newbyteorder("="))
    if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise ValueError("truth values that are neither 0 nor 1")
    if array.dtype.kind == "U" and np.frombuffer(array.tobytes(), np.uint32).max(initial=0) > 0x10FFFF:
        raise ValueError("text with characters that do not exist")
    return array


def map_array(path: Path) -> np.ndarray:
    """Map the array of a .npy file into memory: its pages are read when they are wanted, and changes are not written.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged or holds pickles; the caller names it.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            shape, order, dtype, offset = _header(file.read(_HEADER_BYTES), size)
        except _UNREADABLE as error:
            raise ValueError(clipped(str(error) or type(error).__name__)) from error
    return np.memmap(path, dtype, "c", offset, shape, order)


def _header(head: bytes, size: int) -> _Header:
    """What the beginning of a .npy file of so many bytes says, after a check that the numbers have that size."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    if version not in _READERS:
        raise ValueError(f"version {version} of numpy's format, expected 1.0 or 2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files of Python 2, and of what Python's parser finds odd
        shape, fortran, dtype = _READERS[version](file)
    if dtype.hasobject:
        raise ValueError("Python objects, which are stored as a pickle and could run anything")
    if dtype.kind not in "biufSU" or (dtype.kind == "f" and dtype.itemsize > 8) or dtype.itemsize == 0:
        raise ValueError(f"type {clipped(str(dtype))}, expected numbers, truth values or text")
    told = size - file.tell()
    if len(shape) > 32 or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != told:
        promised = f"{clipped(str(dtype))} of shape {clipped(str(shape))}"
        raise ValueError(f"its header promises {promised}, but {told} bytes follow")
    return shape, "F" if fortran else "C", dtype, file.tell()
