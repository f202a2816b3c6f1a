"""Atomic writing of files: a file is whole or does not exist, and no file of the user is lost.

A regular file is written under a hidden name ``.NAME.<16 hexadecimal digits>.partial`` in its folder, and then replaces
the old file. So a full disk, an error or a killed process leaves the old file as it was. Such a partial file of a
killed process is removed by the next process that writes the file.

Everything that is not a regular file is written through, as a shell's ``>`` does: devices, pipes and sockets are never
replaced, nor are symbolic links, whose target is written.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import IO

__all__ = ["check_outputs", "same_file", "write_atomic"]

_LONGEST = 200  # bytes of a name that still fit beside the rest of the name of a partial file
_YOUNG = 60.0  # seconds in which a partial file may not have been locked yet by the process that writes it
_DESCRIPTOR = re.compile(r"/(?:dev|proc/(?:self|\d+))/fd/(\d+)")
_LINKS = 40  # symbolic links that lead to each other, as Linux counts them


def write_atomic(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file through a partial one beside it: whenever the process dies, the old or the new file is whole.

    The mode of the file that is replaced is kept, and its owner where that is allowed. Pipes, devices and open
    descriptors (``/dev/stdout``, ``/dev/fd/3``) are written through, as are symbolic links.

    Args:
        path: The file; its folder must exist.
        write: Function that writes the content into the open file that is passed.

    Raises:
        OSError: The file cannot be written; the message names it and says why. The old file is as it was.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "numbers.txt")
        >>> write_atomic(path, lambda file: file.write(b"1 2 3"))
        >>> path.read_text()
        '1 2 3'
    """
    path = Path(path)
    try:
        descriptor = _open_descriptor(path)
        if descriptor is not None:
            _write_descriptor(descriptor, write)
        elif _is_device(path):
            with path.open("wb") as file:
                write(file)
        else:
            _write_regular(Path(os.path.realpath(path)), write)
    except OSError as error:
        raise type(error)(
            f"{path} cannot be written: {error.strerror or error}; make room for it, or choose another place"
        ) from error


def same_file(first: Path, second: Path) -> bool:
    """Return whether two paths lead to one file: by other names, symbolic links or hard links, there or not yet."""
    if first.exists() and second.exists():
        return first.samefile(second)
    return os.path.realpath(first) == os.path.realpath(second)


def check_outputs(outputs: Mapping[str, Path], inputs: Mapping[str, Path], *, overwrite: bool = True) -> None:
    """Raise unless all outputs can be written without loss of a file; to be called before any work is done.

    Args:
        outputs: Files that are to be written, by the user's name for them (such as ``"--out"``).
        inputs: Files that are read.
        overwrite: Files that are there already, but no inputs, may be replaced.

    Raises:
        ValueError: An output is an input or another output, is there already and must not be replaced, or has a
            second name (a hard link), which would be lost.
        OSError: Its folder is missing or cannot be written into, or it is a folder itself.
    """
    checked: dict[str, Path] = {}
    for name, path in outputs.items():
        if _is_device(path) or _open_descriptor(path) is not None:
            continue  # nothing there can be lost
        for kind, files in (("read", inputs), ("written", checked)):
            for other, file in files.items():
                if same_file(path, file):
                    raise ValueError(f"{name} {path} is the file that is {kind} as {other}; choose another file")
        _check_place(name, path)
        if path.exists() and not overwrite:
            raise ValueError(f"{name} {path} is there already; pass --overwrite to replace it, or choose another file")
        if path.is_file() and path.stat().st_nlink > 1:
            raise ValueError(
                f"{name} {path} has a second name (a hard link), under which the old content would stay; remove {path} "
                f"first, or choose another file"
            )
        checked[name] = path


def _check_place(name: str, path: Path) -> None:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{name} {path} is a folder, expected the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{name} {path} lies in {target.parent}, which is no folder; make it first")
    if not os.access(target.parent, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise PermissionError(f"{name} {path} cannot be written (permission denied); choose another place")


def _is_device(path: Path) -> bool:
    """Return whether a path leads to neither a file nor a folder, but a device, a pipe or a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _open_descriptor(path: Path) -> int | None:
    """Return the number of the open descriptor of this process that a path stands for, if it does."""
    for _ in range(_LINKS):
        if match := _DESCRIPTOR.fullmatch(str(path)):
            is_this_process = str(path).startswith(("/dev/", "/proc/self/", f"/proc/{os.getpid()}/"))
            return int(match[1]) if is_this_process else None
        if not path.is_symlink():
            return None
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return None


def _write_descriptor(descriptor: int, write: Callable[[IO[bytes]], object]) -> None:
    sys.stdout.flush()  # what was printed before stands before
    with os.fdopen(os.dup(descriptor), "wb") as file:
        write(file)


def _write_regular(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    if path.is_dir():
        raise IsADirectoryError("it is a folder")
    old = path.stat() if path.exists() else None
    if old is not None and not os.access(path, os.W_OK):
        raise PermissionError("it is protected against writing")
    stem = f".{os.fsdecode(os.fsencode(path.name)[:_LONGEST])}."
    _sweep(path.parent, stem)
    # a name of its own in each call, so that two processes never write into the same file
    partial = path.with_name(f"{stem}{token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            _lock(file)
            if old is not None:
                with suppress(OSError, AttributeError):  # only root may give files away; Windows has no owners
                    os.chown(partial, old.st_uid, old.st_gid)
                partial.chmod(stat.S_IMODE(old.st_mode))
            write(file)
        partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink()


def _sweep(folder: Path, stem: str) -> None:
    """Remove the partial files that killed processes have left of a file."""
    name = re.compile(re.escape(stem) + r"[0-9a-f]{16}\.partial")
    with suppress(OSError):  # a folder that cannot be listed has nothing to remove
        for path in [entry for entry in folder.iterdir() if name.fullmatch(entry.name)]:
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _YOUNG and _is_abandoned(path):
                    path.unlink()


def _lock(file: IO[bytes]) -> None:
    """Hold a lock on an open file until it is closed, or the process dies; Windows keeps open files by itself."""
    with suppress(ImportError, OSError):  # some file systems have no locks
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_abandoned(path: Path) -> bool:
    """Return whether no process that lives writes a partial file."""
    try:
        import fcntl
    except ImportError:  # Windows, where a file that is open cannot be removed
        return True
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
