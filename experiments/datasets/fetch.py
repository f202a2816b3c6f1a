"""Fetching published files, whose checksums are known."""

import http.client
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from experiments.files import write_atomic

__all__ = ["fetch"]


def fetch(
    path: Path, url: str, *, checksum: str, remedy: str, unpack: Callable[[bytes], bytes] = lambda packed: packed
) -> None:
    """Fetch one file; whenever this ends, the whole file is there or nothing of it.

    Args:
        path: where to put it.
        url: where it is published.
        checksum: SHA-256 checksum of the file, unpacked.
        remedy: what to do if it cannot be fetched, to tell in errors.
        unpack: makes the file of what is published; raises ValueError where that is damaged.

    Raises:
        FileNotFoundError: the file cannot be fetched.
        ValueError: what came is damaged, or has another checksum.
        UserError: the file cannot be written.
    """
    kept = "expected the published file. Nothing of it was kept. Try again, or put an intact copy there."
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            packed = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise FileNotFoundError(f"{path} is missing, and {url} could not be fetched: {error}. {remedy}") from error
    try:
        content = unpack(packed)
    except ValueError as error:
        raise ValueError(f"{path}: what came from {url} is damaged: {error}; {kept}") from error
    found = sha256(content).hexdigest()
    if found != checksum:
        raise ValueError(f"{path}: what came from {url} has the SHA-256 checksum {found}, not {checksum}; {kept}")
    write_atomic(path, lambda file: file.write(content))
