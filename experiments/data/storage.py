"""The folder of the data sets, downloads of published ones, and arrays that are cached on disk."""

import gzip
import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor

from experiments.files import OTHER_FOLDER, locked, reading, write_atomic
from experiments.files import data_folder as data_folder

SPLITS = ("train", "val", "test")
_LISTED = Path(__file__).with_name("checksums.txt").read_text().splitlines()
CHECKSUMS = {name: digest for digest, name in (line.split() for line in _LISTED if not line.startswith("#"))}
NEW_COPY = f"replace the file by an intact copy, or name another folder by {OTHER_FOLDER}"


def missing(what: object, expected: str, folder: str) -> FileNotFoundError:
    """Return the error of files that are missing; ``folder`` is the data set's, inside the folder of all data sets."""
    return FileNotFoundError(
        f"{what} is missing; expected {expected}. Put it there, or name the folder that holds {folder} by "
        f"{OTHER_FOLDER}."
    )


def first_file(paths: Sequence[Path], expected: str, folder: str) -> Path:
    """Return the first of these files that exists; raise the error of `missing` without any."""
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise missing(" or ".join(map(str, paths)), expected, folder)
    return path


def plain_name(name: object) -> str:
    """Return the name of a file or folder; raise ValueError for a path that leads into another folder."""
    if not isinstance(name, str) or Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is no plain name of a file; expected a name without '/' and '..'")
    return name


def fetch_missing(folder: Path, names: Sequence[str], address: str, ending: str = "") -> None:
    """Download the files that are missing in the folder; a file is written whole or not at all.

    The address of a file is ``address/name`` with the ending; files that end with ".gz" are unpacked. Files that exist
    stay as they are.
    """
    for name in (name for name in names if not (folder / name).is_file()):
        url = f"{address}/{name}{ending}"
        try:
            with urlopen(url, timeout=60) as answer:
                content = answer.read()
        except (OSError, HTTPException) as error:
            raise missing(
                folder / name, f"the file of {url}, which could not be fetched ({error})", folder.name
            ) from error
        with reading(url, "the published file", f"try again, or put an intact copy into {folder}"):
            content = gzip.decompress(content) if ending == ".gz" else content
            if sha256(content).hexdigest() != CHECKSUMS[name]:
                raise ValueError(f"the SHA-256 checksum is not {CHECKSUMS[name]}")
        write_atomic(folder / name, lambda file: file.write(content))  # noqa: B023, it is called at once


# arrays


def read_arrays(path: Path, remedy: str = "replace it by an intact copy") -> dict[str, np.ndarray]:
    """Read all arrays of a .npz archive in the byte order of this machine; raise DamagedFileError for another file."""
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


def cached_file(folder: Path, name: str, key: Any, write: Callable[[IO[bytes]], object]) -> Path:
    """Return the path of a file that is written once; the key, as JSON, holds everything that decides on its content.

    A process that dies leaves no half of a file. Of several processes one writes the file, and the others wait for it.
    The name ends with the kind of the file, and gets a checksum of the key.
    """
    stem, _, kind = name.rpartition(".")
    path = folder / f"{stem}-{sha256(json.dumps(key).encode()).hexdigest()[:16]}.{kind}"
    if not path.is_file():
        with locked(path):
            if not path.is_file():  # no other process has written it meanwhile
                write_atomic(path, write)
    return path


def cached_array(folder: Path, name: str, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
    """Return an array that is computed once and read from its file afterwards; see `cached_file`."""
    path = cached_file(folder, f"{name}.npy", key, lambda file: np.save(file, make()))
    with reading(path, "an array of numpy without pickles", "remove the file, and it is made again"):
        # memory pages are read when they are used; torch warns of arrays that cannot be written to
        return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
