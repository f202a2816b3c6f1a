"""Where data sets lie, what is said of files that are missing, and fetching published ones."""

import gzip
import os
from collections.abc import Sequence
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from experiments.files import reading, write_atomic

SPLITS = ("train", "val", "test")
OTHER_FOLDER = "--data-root DIR (the argument data_root) or the environment variable PYRO_ATTENTION_DATA"
_LISTED = Path(__file__).with_name("checksums.txt").read_text().splitlines()
CHECKSUMS = {name: digest for digest, name in (line.split() for line in _LISTED if not line.startswith("#"))}
NEW_COPY = f"replace the file by an intact copy, or name another folder by {OTHER_FOLDER}"


def data_folder(data_root: Path | str | None) -> Path:
    """Return the folder of the data sets: the argument, else $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention."""
    return Path(data_root or os.environ.get("PYRO_ATTENTION_DATA") or "~/.cache/pyro_attention").expanduser()


def check_split(split: str) -> None:
    """Raise ValueError unless a split is one of SPLITS."""
    if split not in SPLITS:
        raise ValueError(f"no split is named {split!r}; expected one of {', '.join(SPLITS)}")


def missing(what: object, expected: str, folder: str) -> FileNotFoundError:
    """Return the error of files that are not there; folder is the one of the data set, inside that of all data sets."""
    return FileNotFoundError(
        f"{what} is missing; expected {expected}. Put it there, or name the folder that holds {folder} by "
        f"{OTHER_FOLDER}."
    )


def first_file(paths: Sequence[Path], expected: str, folder: str) -> Path:
    """Return the first of these files that is there; without any the error of `missing`."""
    found = next(filter(Path.is_file, paths), None)
    if found is None:
        raise missing(" or ".join(map(str, paths)), expected, folder)
    return found


def plain_name(name: object) -> str:
    """Return the name of a file or folder that lies in another one; ValueError for any that leads elsewhere."""
    if not isinstance(name, str) or Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is no plain name of a file; expected one without '/' and '..'")
    return name


def fetch_missing(folder: Path, names: Sequence[str], address: str, ending: str = "") -> None:
    """Fetch those files that are not in the folder; each is there whole afterwards, or not at all.

    They are published at the address under their names and the ending, of which ".gz" is unpacked. Files that are there
    are taken as they are.
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
