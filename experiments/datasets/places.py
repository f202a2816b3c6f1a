"""Where data sets lie, names of files inside of their folders, and what messages say about it."""

import os
from pathlib import Path

__all__ = ["NEW_COPY", "OTHER_FOLDER", "SPLITS", "check_split", "data_folder", "missing", "plain_name"]

SPLITS = ("train", "val", "test")
OTHER_FOLDER = "--data-root DIR (the argument data_root) or the environment variable PYRO_ATTENTION_DATA"
NEW_COPY = f"Replace the file by an intact copy, or name another folder by {OTHER_FOLDER}."


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


def plain_name(name: object) -> str:
    """Return the name of a file or folder that lies in another one; ValueError for any that leads elsewhere."""
    if not isinstance(name, str) or Path(name).name != name or name == "..":
        raise ValueError(f"{name!r} is no plain name of a file; expected one without '/' and '..'")
    return name
