"""Files: errors that a user can put right, reading that names the file, writing whole or not at all, and locks."""

from __future__ import annotations

import glob
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import IO, Any

import yaml
from filelock import FileLock, Timeout

PICTURE_MARK = "experiments of pyro_attention"
_CITED = 300  # letters of the error of a library, some of which give a page of advice
_PATIENCE = 1  # seconds before it is said what is waited for


class UserError(Exception):
    """Something the user can put right; shown as one line, without a traceback."""


class DamagedFileError(UserError, ValueError):
    """A file that cannot be read or holds something else; a ValueError, and one line in a terminal."""


@contextmanager
def user_errors(*types: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these types into :class:`UserError`."""
    try:
        yield
    except types as error:
        raise UserError(str(error)) from error


def did_you_mean(words: Iterable[str], given: str) -> str:
    """The end of an error message: the word with these initials, or the nearest one; nothing when none is near.

    Example:
        >>> did_you_mean(["soft", "weibull"], "weibul")
        "; did you mean 'weibull'?"
    """
    words = list(words)
    short = [word for word in words if "".join(re.findall(r"(?<![a-z])[a-z]", word)) == given.lstrip("-")]
    near = short or get_close_matches(given, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def expected_one_of(words: Iterable[str], given: str) -> str:
    """What an error message says about an unknown word: the words that are known, and the nearest of them."""
    words = list(words)
    return f"expected one of {', '.join(words)}{did_you_mean(words, given)}"


def unwritable(path: Path, error: OSError) -> UserError:
    """The error of a file that cannot be written: its name, the reason and the remedy."""
    return UserError(f"{path} cannot be written: {error.strerror or error}; make room for it, or choose another place")


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file through a temporary one beside it: whenever the process dies, the old or the new file is whole.

    Folders on the way are made. The temporary file has a name of its own in each call, so that two processes never
    write into the same one.

    Raises:
        UserError: The file cannot be written. Errors of ``write`` that concern something else are left as they are.
    """
    partial = path.with_name(f".{path.name}.{token_hex(8)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("xb") as file:
            write(file)
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        # torch.save raises RuntimeError out of the error of the operating system
        cause = error if isinstance(error, OSError) else error.__context__
        ours = {None, *map(str, (path, partial, *path.parents))}
        if not isinstance(cause, OSError) or cause.errno is None or cause.filename not in ours:
            raise
        raise unwritable(path, cause) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as :func:`write_atomic` does."""
    write_atomic(path, lambda file: file.write(text.encode()))


def remove_partials(path: Path) -> None:
    """Remove the temporary files of processes that were killed; only for who holds the lock on the file."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        partial.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have a file for oneself: another process that asks for it waits until this one is done, or dead.

    The lock is the operating system's, on a hidden file that stays beside the file; who is killed holds it no more.

    Raises:
        UserError: There cannot be a lock beside the file.
    """
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=_PATIENCE)
        except Timeout:
            print(f"waiting for another process, which is writing {path}", file=sys.stderr, flush=True)
            lock.acquire()
    except OSError as error:
        raise unwritable(path, error) from error
    try:
        remove_partials(path)
        yield
    finally:
        lock.release()


def drawn_here(path: Path) -> bool:
    """Whether a picture was drawn by these scripts under this name: it says so itself; a copy has another name."""
    from PIL import Image  # only where a picture is there already

    try:
        with Image.open(path) as image:
            return (image.info.get("Software"), image.info.get("Title")) == (PICTURE_MARK, path.name)
    except (OSError, SyntaxError):  # Pillow's errors of what is no picture, or a damaged one
        return False


@contextmanager
def reading(path: Path | str, expected: str, remedy: str = "replace it by an intact copy") -> Iterator[None]:
    """Put a file, what it should be and a remedy around whatever error a library ends in when it reads the file.

    Raises:
        DamagedFileError: Any error; those of a reading inside pass as they are.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # on damaged bytes libraries raise nearly anything
        said = " ".join(f"{type(error).__name__}: {error}".split())
        said = said if len(said) <= _CITED else f"{said[:_CITED]}..."
        seen = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({said})"
        raise DamagedFileError(f"{path} {seen}, expected {expected}; {remedy}") from error


def read_packed(path: Path) -> bytes:
    """The bytes of a file, unpacked where its name ends with .gz; for use inside of :func:`reading`."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def read_text(path: Path, remedy: str, *, expected: str = "text in UTF-8") -> str:
    """Read a text file.

    Raises:
        DamagedFileError: The file cannot be read or is no such text; the error ends with the remedy.
    """
    with reading(path, expected, remedy):
        return path.read_bytes().decode()


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read an object out of a JSON file; DamagedFileError where there is none."""
    with reading(path, "a JSON object", remedy):
        return _names(json.loads(path.read_bytes()))


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """Read the names and values of a configuration file in YAML; DamagedFileError where there are none."""
    with reading(path, "lines such as 'seed: 0'", remedy):
        return _names(yaml.safe_load(path.read_bytes()))


def _names(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"it holds {type(content).__name__}")
    return content
