"""Reading old pickles of arrays, sparse matrices and adjacency lists without running anything that they ask for."""

import math
import pickle
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from experiments.datasets.graph_parts import NEW_COPY

__all__ = ["read_pickle"]


class _Recorded:
    """What a pickle says of an object: the arguments it is made from, and the state it is given then.

    Nothing of numpy or scipy is called while a pickle is read: their own ways to restore an object trust its state,
    and their names have moved from release to release. The real objects are made from the records afterwards.
    """

    arguments: tuple[Any, ...]
    state: Any

    def __new__(cls, *arguments: Any) -> "_Recorded":
        record = super().__new__(cls)
        record.arguments, record.state = arguments, None
        return record

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


def _encode(text: str, encoding: str) -> bytes:
    """Stand in for codecs.encode, by which Python 3 stores bytes in the protocols of Python 2."""
    if encoding != "latin1":
        raise ValueError(f"bytes stored by the encoding {encoding!r}, expected 'latin1'")
    return text.encode("latin1")


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
    ("_codecs", "encode"): _encode,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("builtins", "list"): list,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _GLOBALS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which was refused")
        return _GLOBALS[module, name]


def read_pickle(path: Path) -> Any:
    """Read one numpy array, CSR matrix, or dictionary of lists from a pickle of Python 2 or 3.

    Args:
        path: the file.

    Returns:
        A numpy array of numbers, a checked `scipy.sparse.csr_matrix`, or plain Python objects as they are.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is damaged, or asks for anything else than such objects need; the message names it.
    """
    with path.open("rb") as file:  # outside the try: a file that we may not read is not a damaged one
        try:
            content = _Unpickler(file, encoding="latin1").load()
            if isinstance(content, _Matrix):
                return _matrix(content)
            return _array(content) if isinstance(content, _Array | _BufferArray) else content
        except Exception as error:  # damaged bytes are instructions too: they can raise whatever Python can
            expected = "a pickle of a numpy array, a scipy.sparse.csr_matrix, or a dictionary of lists"
            seen = str(error) or type(error).__name__
            raise ValueError(f"{path}: {seen}; expected {expected}. {NEW_COPY}") from error


def _array(record: Any) -> np.ndarray:
    if isinstance(record, _BufferArray):
        content, dtype, shape, order = record.arguments
    else:
        _, shape, dtype, fortran, content = record.state
        order = "F" if fortran else "C"
    dtype = _dtype(dtype)
    content = content.encode("latin1") if isinstance(content, str) else bytes(content)
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an array of {len(content)} bytes for the shape {shape} of {dtype}")
    return np.ndarray(shape, dtype, content, order=order).astype(dtype.newbyteorder("="))


def _dtype(record: _Dtype) -> np.dtype:
    code, byte_order = record.arguments[0], record.state[1]
    if not re.fullmatch("[biuf][1248]", code) or byte_order not in ("<", ">", "|", "="):
        raise ValueError(f"an array of type {code!r}, expected numbers")
    return np.dtype(byte_order + code)


def _matrix(record: _Matrix) -> csr_matrix:
    state = record.state
    data, indices, indptr = (_array(state[key]) for key in ("data", "indices", "indptr"))
    matrix = csr_matrix((data, indices, indptr), shape=state["_shape"] if "_shape" in state else state["shape"])
    matrix.check_format(full_check=True)
    return matrix
