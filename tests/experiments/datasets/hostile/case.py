"""What a crafted input is, and content that every reader of files can meet.

To add an input, append a `Case` to the list of its format, in the other files of this folder.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Content = bytes | Callable[[Path], object]


class Case(NamedTuple):
    """A crafted input.

    Args:
        name: what is crafted.
        read: reads it, given the folder of the data.
        files: content by name below the folder; what is no bytes is a function that makes whatever should be there.
        named: the file that the error names.
        seen: a part of the error.
    """

    name: str
    read: Callable[[Path], object]
    files: dict[str, Content]
    named: str
    seen: str = "; expected "


def directory(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    """16 GB of zeros that take no room on the disk."""
    with path.open("wb") as file:
        file.truncate(2**34)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to(target: str) -> Content:
    return lambda path: path.symlink_to(target)


def later(make: Callable[[], bytes]) -> Content:
    """Content that takes a while to make."""
    return lambda path: path.write_bytes(make())


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


ANYWHERE: list[tuple[str, Content, str]] = [
    ("directory", directory, "is a directory; expected a file"),
    ("sparse", sparse, ""),
    ("pipe", pipe, "is a device or a pipe; expected a file"),
    ("device", endless, "is a device or a pipe; expected a file"),
    ("link to itself", lambda path: path.symlink_to(path), "; expected "),
]


def anywhere(kind: str, read: Callable[[Path], object], file: str, **others: Content) -> list[Case]:
    """What can be in the place of a file of any kind."""
    return [Case(f"{kind}: {name}", read, others | {file: content}, file, seen) for name, content, seen in ANYWHERE]


class Run:
    """Runs something when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch canary",)
