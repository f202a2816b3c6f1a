"""Fetching published files, whose checksums are known."""

import gzip
import hashlib
import http.client
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.datasets.places import OTHER_FOLDER
from experiments.files import write_atomic

__all__ = ["complete_folder"]


def complete_folder(
    folder: Path,
    names: Sequence[str],
    address: str,
    checksums: Mapping[str, str],
    *,
    remedy: str,
    ending: str = "",
) -> None:
    """Fetch those of the named files that are not in the folder; whenever this ends, each is there whole or not at all.

    Files that are there are taken as they are, so that something else in the same format can stand in their place; but
    then nothing is fetched to go with them.

    Args:
        folder: where the files belong.
        names: names of the files.
        address: where they are published, under their names and the ending.
        checksums: SHA-256 checksums of the files, unpacked, by their names.
        remedy: what to do if they cannot be fetched, to tell in errors.
        ending: what the published names end with; ".gz" is unpacked.

    Raises:
        FileNotFoundError: a file cannot be fetched, or is not fetched to go with other ones.
        ValueError: what came is damaged, or has another checksum.
        UserError: a file cannot be written.
    """
    missing = [name for name in names if not (folder / name).is_file()]
    there = [name for name in names if name not in missing] if missing else []
    own = [name for name in there if _sha256(folder / name) != checksums[name]]
    if own:
        raise FileNotFoundError(
            f"{folder}: {', '.join(missing)} missing; expected all of {', '.join(names)}. The missing ones are not "
            f"fetched from {address}, because {', '.join(own)} differs from the file published there. Add the missing "
            f"files, remove those that are there, or name another folder by {OTHER_FOLDER}."
        )
    for name in missing:
        _fetch(folder / name, f"{address}/{name}{ending}", checksums[name], remedy)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(path: Path, url: str, checksum: str, remedy: str) -> None:
    kept = "expected the published file. Nothing of it was kept. Try again, or put an intact copy there."
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise FileNotFoundError(f"{path} is missing, and {url} could not be fetched: {error}. {remedy}") from error
    try:
        content = gzip.decompress(content) if url.endswith(".gz") else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: what came from {url} is damaged: {error}; {kept}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != checksum:
        raise ValueError(f"{path}: what came from {url} has the SHA-256 checksum {found}, not {checksum}; {kept}")
    write_atomic(path, lambda file: file.write(content))
