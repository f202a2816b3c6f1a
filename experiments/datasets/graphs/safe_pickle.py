"""Reading old pickles of arrays, sparse matrices and adjacency lists without running anything that they ask for."""

import io
import math
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_matrix

from experiments.datasets.places import NEW_COPY
from experiments.datasets.untrusted import clipped, read_bytes, shown

__all__ = ["MOST_INSTRUCTIONS", "read_pickle"]

MOST_INSTRUCTIONS = 4_000_000  # of a pickle; one can make an object of 100 bytes. PubMed's graph has some 0.2 million.
_EXPECTED = "a pickle of a numpy array, a scipy.sparse.csr_matrix, or a dictionary of lists"
_SETS = ("EMPTY_SET", "FROZENSET", "ADDITEMS")  # an empty one takes 216 bytes, and no such file has any


class _Recorded:
    """What a pickle says of an object: the arguments it is made from, and the state it is given then.

    Nothing of numpy, scipy or Python itself is called while a pickle is read. Their own ways to restore an object trust
    its state, and copy their arguments, which a pickle may name thousands of times; and their names have moved from
    release to release. The real objects are made from the records afterwards.
    """

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> Self:
        record = super().__new__(cls)
        record.arguments, record.state = arguments, None
        return record

    def __init__(self, *arguments: Any) -> None:
        pass  # for _Dictionary: dict's own would copy an argument

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Matrix(_Recorded):
    """A scipy.sparse.csr_matrix."""


class _Array(_Recorded):
    """A numpy array, made empty and then given its state."""


class _BufferArray(_Recorded):
    """A numpy array as protocol 5 stores it."""


class _Dtype(_Recorded):
    """A numpy.dtype."""


class _Bytes(_Recorded):
    """What codecs.encode makes, by which Python 3 stores bytes in the protocols of Python 2."""

    def __new__(cls, text: str, encoding: str) -> Self:
        if encoding != "latin1":
            raise ValueError(f"bytes stored by the encoding {shown(encoding)}, expected 'latin1'")
        return super().__new__(cls, text)


class _Dictionary(_Recorded, dict[Any, Any]):
    """A collections.defaultdict."""


# By module and name, of every release that has written such files: Python 2 and 3, numpy 1 and 2.
_GLOBALS: dict[tuple[str, str], Any] = {
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("scipy.sparse._csr", "csr_matrix"): _Matrix,
    ("numpy", "ndarray"): _Recorded,  # only an argument of _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _BufferArray,
    ("numpy._core.numeric", "_frombuffer"): _BufferArray,
    ("_codecs", "encode"): _Bytes,
    ("collections", "defaultdict"): _Dictionary,
    ("__builtin__", "list"): _Recorded,  # only an argument of defaultdict
    ("builtins", "list"): _Recorded,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {clipped(f'{module}.{name}')}, which was refused")
        return _GLOBALS[module, name]


def read_pickle(path: Path) -> Any:
    """Read one numpy array, CSR matrix, or dictionary of lists from a pickle of Python 2 or 3.

    Arrays hold numbers, and matrices are checked. To go through all lists takes no more steps than the file has bytes.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged, too large, or asks for anything else than such objects need.
    """
    content = read_bytes(path, expected=_EXPECTED)
    try:
        _check_instructions(content)
        made = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if isinstance(made, _Matrix):
            return _matrix(made)
        if isinstance(made, _Array | _BufferArray):
            return _array(made)
        _check_size(made, len(content))
        return made
    except Exception as error:  # damaged bytes are instructions too: they can raise whatever Python can
        # str() of an error could write out, at any length, what the pickle has made
        told = error.args[0] if error.args and isinstance(error.args[0], str) else ""
        seen = clipped(told) if told else type(error).__name__
        raise ValueError(f"{path}: {seen}; expected {_EXPECTED}. {NEW_COPY}") from error


def _check_instructions(content: bytes) -> None:
    """Refuse instructions by which a few bytes take much memory or time."""
    for number, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        name = instruction.name
        if number >= MOST_INSTRUCTIONS:
            raise ValueError(f"more than {MOST_INSTRUCTIONS} instructions (MOST_INSTRUCTIONS)")
        if name in _SETS:
            raise ValueError("a set")
        # Python keeps a table as long as the largest number; honest ones count what is kept.
        if "PUT" in name and argument is not None and argument > len(content):
            raise ValueError(f"an object kept under the number {shown(argument)}, in {len(content)} bytes")
        # Numbers of more bits can all have the same hash: a dictionary of them takes for ever.
        if isinstance(argument, int) and argument.bit_length() > 64:
            raise ValueError(f"a number of {argument.bit_length()} bits, expected numbers of nodes")


def _check_size(made: Any, most: int) -> None:
    """Refuse lists that are in others many times: a pickle of 200 bytes can hold one of 10 ** 9 entries."""
    if not isinstance(made, list | tuple | dict):
        raise ValueError(shown(made))
    left, seen = [made], 0
    while left:
        value = left.pop()
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        seen += len(inner)
        if seen > most:
            raise ValueError(f"lists that are in others many times: more than {most} entries in all, for {most} bytes")
        left.extend(item for item in inner if isinstance(item, list | tuple | dict))


def _array(record: Any) -> np.ndarray:
    if isinstance(record, _BufferArray):
        content, dtype, shape, order = record.arguments
    else:
        _, shape, dtype, fortran, content = record.state
        order = "F" if fortran else "C"
    dtype, shape, content = _dtype(dtype), _sizes(shape), _bytes(content)
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of {len(content)} bytes for the shape {shape} of {dtype}")
    return np.ndarray(shape, dtype, content, order=order).astype(dtype.newbyteorder("="))


def _bytes(content: Any) -> bytes:
    """The bytes of an array, as Python 2 or 3 stored them; bytes() of a number would make as many zeros."""
    if isinstance(content, _Bytes):
        (content,) = content.arguments
    if isinstance(content, str):
        return content.encode("latin1")
    if not isinstance(content, bytes | bytearray):
        raise ValueError(f"an array of {shown(content)}, expected bytes")
    return bytes(content)


def _sizes(shape: Any) -> tuple[int, ...]:
    """A shape; a product with a list in it would repeat the list."""
    if not isinstance(shape, tuple) or len(shape) > 2 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"a shape of {shown(shape)}, expected one or two whole numbers from 0")
    return shape


def _dtype(record: _Dtype) -> np.dtype:
    code, byte_order = record.arguments[0], record.state[1]
    if not isinstance(code, str) or not re.fullmatch("[biuf][1248]", code) or byte_order not in ("<", ">", "|", "="):
        raise ValueError(f"an array of type {shown(code)}, expected numbers")
    return np.dtype(byte_order + code)


def _matrix(record: _Matrix) -> csr_matrix:
    state = record.state
    data, indices, indptr = (_array(state[key]) for key in ("data", "indices", "indptr"))
    shape = _sizes(state["_shape"] if "_shape" in state else state["shape"])
    matrix = csr_matrix((data, indices, indptr), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
