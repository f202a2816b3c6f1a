"""Reading files of strangers: no more bytes than a bound, nothing outside a folder, errors that are short."""

import gzip
import io
import os
import re
import stat
import zlib
from pathlib import Path

__all__ = ["MOST_BYTES", "clipped", "file_name", "inside", "is_there", "read_bytes", "shown", "unpacked"]

MOST_BYTES = 2**30  # of a file that is read as a whole, or of an archive when it is unpacked
_LENGTH = 200  # of what an error cites
_CHUNK = 2**20  # bytes, as reading takes the memory of all that is asked for


def shown(value: object) -> str:
    """Return a short text of a value that a file has made, to cite in an error.

    Texts are cut off, and of an object only its type is told: to write out a list that holds itself many times would
    take hours.

    Example:
        >>> shown("a\\nb"), shown(2), shown([[]])
        ("'a\\\\nb'", '2', 'list')
    """
    if isinstance(value, str | bytes):
        return repr(value[:_LENGTH]) + "..." * (len(value) > _LENGTH)
    plain = value is None or isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 64)
    return repr(value) if plain else type(value).__name__


def clipped(text: str) -> str:
    """Return a text as it is if it is short and of one line, else as `shown` has it."""
    return text if len(text) <= _LENGTH and text.isprintable() else shown(text)


def is_there(path: Path) -> bool:
    """Return whether there is a file, or nothing; ValueError if something else is there, or no file can be."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name that is too long, links in a circle, a folder that is closed to us
        seen = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{clipped(str(path))}: {seen}; expected the name of a file that can be read.") from error
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise ValueError(f"{path} is {kind}; expected a file. Remove it, or name another file or folder.")
    return True


def read_bytes(path: Path, *, expected: str, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file, which has `most` bytes at most and is `expected` to be something, to tell in errors.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: the file cannot be read.
        ValueError: no file, or one that is too large.
    """
    if not is_there(path):
        raise FileNotFoundError(f"{path} is missing; expected {expected}.")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ValueError(
                    f"{path} has {size} bytes; expected {expected}, of {most} bytes at most (MOST_BYTES in "
                    f"experiments/datasets/untrusted.py). Divide the file, or raise the bound."
                )
            return file.read()
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror or error}; expected {expected}.") from error


def unpacked(packed: bytes, path: Path, *, expected: str, most: int = MOST_BYTES) -> bytes:
    """Return what is in a gzip archive, `most` bytes at most; the path and what is expected are told in errors.

    Raises:
        ValueError: no archive, a damaged one, or one that holds more.
    """
    content = bytearray()
    try:
        with gzip.open(io.BytesIO(packed)) as file:
            while len(content) <= most and (chunk := file.read(_CHUNK)):
                content += chunk
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no gzip archive ({error}); expected {expected}") from error
    if len(content) > most:
        raise ValueError(f"{path} has more than {most} bytes when it is unpacked; expected less")
    return bytes(content)


def inside(path: Path, folder: Path) -> Path:
    """Return a path; ValueError unless it is inside a (resolved) folder, whatever "..", "/" and links are in it."""
    try:
        real = path.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # links in a circle, a zero byte
        raise ValueError(f"{clipped(str(path))}: {error}; expected a path inside {folder}") from error
    if not real.is_relative_to(folder):
        raise ValueError(f"{clipped(str(path))} leads out of {folder}, to {clipped(str(real))}; expected a path inside")
    return path


def file_name(text: str, what: str) -> str:
    """Return a text; ValueError, which tells what it is, unless it can begin the name of a file in any folder."""
    if not re.fullmatch(r"\w[\w.+ -]{0,59}", text):
        raise ValueError(f"{what} is {shown(text)}; expected at most 60 letters, digits, '_', '.', '+', '-' and blanks")
    return text
