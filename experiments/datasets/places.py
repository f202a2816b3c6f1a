"""Where data sets lie, and what messages say about it."""

import os
from pathlib import Path

__all__ = ["NEW_COPY", "OTHER_FOLDER", "SPLITS", "data_folder"]

SPLITS = ("train", "val", "test")
OTHER_FOLDER = "--data-root DIR (the argument data_root) or the environment variable PYRO_ATTENTION_DATA"
NEW_COPY = f"Replace the file by an intact copy, or name another folder by {OTHER_FOLDER}."


def data_folder(data_root: Path | str | None) -> Path:
    """Return the folder of the data sets: the argument, else $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention."""
    return Path(data_root or os.environ.get("PYRO_ATTENTION_DATA") or "~/.cache/pyro_attention").expanduser()
