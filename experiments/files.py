"""Files: errors that a user can put right, reading that names the file, writing whole or not at all, and locks.

Nothing here imports torch before it is needed: what a command reads is looked for first.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import yaml
from filelock import FileLock

_CITED = 300  # letters of the error of a library, some of which give a page of advice
OTHER_FOLDER = "--data-root DIR (the argument data_root) or the environment variable PYRO_ATTENTION_DATA"
_WRITTEN = {"out", "results", "cache"}  # options that say where something is written
# Folders of data sets that no command fetches, inside the folder of all data sets.
_FOLDERS = {
    "iwslt14": "iwslt14-de-en",
    "ted": "ted-de-en-extra",
    "tatoeba": "tatoeba-deu-eng",
    "europarl_de_en": "europarl-de-en",
    "hansards_fr_en": "hansards-fr-en",
    "english": "tatoeba-deu-eng",
    "squad": "squad",
    "flickr8k": "flickr8k",
    "coco": "coco",
    "easy_vqa": "easy-vqa",
    "daquar": "daquar",
    "vqa_v2": "vqa_v2",
    **dict.fromkeys(("actor", "texas", "chameleon_filtered", "squirrel_filtered", "minesweeper"), "heterophilous"),
    **dict.fromkeys(("rte", "mrpc", "cola", "sst2", "stsb", "mnli", "qnli", "qqp", "wnli"), "glue"),
}


class UserError(Exception):
    """Error that the user can put right; shown as one line, without a traceback."""


class DamagedFileError(UserError, ValueError):
    """Error about a file that cannot be read or holds something else; a ValueError, and one line in a terminal."""


@contextmanager
def user_errors(*types: type[Exception]) -> Iterator[None]:
    """Turn exceptions of these types into :class:`UserError`."""
    try:
        yield
    except UserError:  # some are of these types, too
        raise
    except types as error:
        raise UserError(str(error)) from error


def did_you_mean(words: Iterable[str], given: str) -> str:
    """Return the end of an error message: the word with these initials, or the nearest one; "" when none is near.

    Example:
        >>> did_you_mean(["soft", "weibull"], "weibul")
        "; did you mean 'weibull'?"
    """
    words = list(words)
    short = [word for word in words if "".join(re.findall(r"(?<![a-z])[a-z]", word)) == given.lstrip("-")]
    near = short or get_close_matches(given, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def expected_one_of(words: Iterable[str], given: str) -> str:
    """Return the part of an error message about an unknown word: the known words, and the nearest of them."""
    words = list(words)
    return f"expected one of {', '.join(words)}{did_you_mean(words, given)}"


def write_atomic(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file whole or not at all, as :func:`pyro_attention.atomic_write.write_atomic` does.

    Folders on the way are made.

    Raises:
        UserError: The file cannot be written; the old one is as it was.
    """
    from pyro_attention import atomic_write  # not above: it imports torch, which help needs not

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}; choose another folder") from error
    with user_errors(OSError):
        atomic_write.write_atomic(path, write)


def check_outputs(outputs: Iterable[Path], inputs: Iterable[Path], *, overwrite: bool) -> None:
    """Raise UserError unless files can be written without the loss of one that is read or is there already."""
    from pyro_attention import atomic_write  # not above: it imports torch, which help needs not

    with user_errors(OSError, ValueError):
        for path in outputs:
            for file in inputs:
                if atomic_write.same_file(path, file):
                    raise UserError(f"the result would replace {file}; name another file by --out")
            if path.is_file() and not overwrite:
                raise UserError(f"{path} is there already and would be lost; choose another --out, or pass --overwrite")


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8 as :func:`write_atomic` does."""
    write_atomic(path, lambda file: file.write(text.encode()))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file: another process that asks for it waits until this one is done, or dead."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        yield


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
        state = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({said})"
        raise DamagedFileError(f"{path} {state}, expected {expected}; {remedy}") from error


def read_packed(path: Path) -> bytes:
    """Read the bytes of a file, unpacked where its name ends with .gz; for use inside of :func:`reading`."""
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def check_characters(*texts: str) -> None:
    """Raise ValueError where a text has half of a character, which JSON can hold; for use inside of :func:`reading`."""
    from pyro_attention.text_lines import check_characters as check  # not above: it imports torch

    for text in texts:
        check(text)


def text_lines(path: Path, remedy: str, *, expected: str = "text in UTF-8") -> list[str]:
    r"""Read the lines of a text file, which only ``\n`` and ``\r\n`` end; see :func:`read_text`.

    A byte order mark is no part of the first line.
    """
    from pyro_attention.text_lines import split_lines  # not above: it imports torch, which help needs not

    return split_lines(read_text(path, remedy, expected=expected).removeprefix("\ufeff"))


def read_text(path: Path, remedy: str, *, expected: str = "text in UTF-8") -> str:
    """Read a text file; DamagedFileError, which ends with the remedy, where it cannot be read or is no such text."""
    with reading(path, expected, remedy):
        return path.read_bytes().decode()


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read an object out of a JSON file; DamagedFileError where there is none."""
    with reading(path, "a JSON object", remedy):
        return dict(json.loads(path.read_bytes()))


def read_yaml(path: Path, remedy: str) -> dict[str, Any]:
    """Read the names and values of a configuration file in YAML; DamagedFileError where there are none."""
    with reading(path, "lines such as 'seed: 0'", remedy):
        return dict(yaml.safe_load(path.read_bytes()))


# what a command reads


def data_folder(data_root: Path | str | None) -> Path:
    """Return the folder of the data sets: the argument, else $PYRO_ATTENTION_DATA, else ~/.cache/pyro_attention."""
    return Path(data_root or os.environ.get("PYRO_ATTENTION_DATA") or "~/.cache/pyro_attention").expanduser()


def check_inputs(config: Any) -> None:
    """Check that what a configuration reads is there: files and folders that are given, and that of its data set.

    Raises:
        UserError: Naming the option, the path, and the remedy.
    """
    for option, path in _given(config):
        if not path.exists():
            where = "" if path.is_absolute() else f" (relative to {Path.cwd()})"
            raise UserError(f"{path}{where} is missing; expected a file or folder for {option}; check its name")
    data_set = getattr(config, "dataset", getattr(config, "task", ""))
    if getattr(config, "graph", None) is None and hasattr(config, "data_root") and (name := _FOLDERS.get(data_set)):
        folder = data_folder(config.data_root) / name
        if not folder.exists():
            raise UserError(
                f"{folder} is missing; expected the files of the data set {data_set}, which no command fetches. "
                f"Put them there, or name the folder that holds {name} by {OTHER_FOLDER}."
            )


def _given(config: Any) -> Iterator[tuple[str, Path]]:
    """Options whose values are paths that are read, and the paths; also those of a table's trainings."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    positional = {field.name for field in fields(config) if field.default is field.default_factory is MISSING}
    for name, value in {**values, **values.get("changes", {})}.items():
        if name not in _WRITTEN and name != "data_root":  # a folder of data that are fetched may be made
            for path in value if isinstance(value, tuple) else [value]:
                if isinstance(path, Path):
                    yield name if name in positional else f"--{name.replace('_', '-')}", path
