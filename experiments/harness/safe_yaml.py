"""Configuration files, read with a bounded size and without what lets a small YAML file fill the memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import yaml

__all__ = ["MAX_BYTES", "MAX_DEPTH", "bounded_text", "load_plain", "mapping", "read_yaml"]

MAX_BYTES = 2**16  # a config.yaml of the scripts has less than a twentieth of it
MAX_DEPTH = 64  # of lists in lists; a config.yaml has two or three


class _PlainLoader(yaml.SafeLoader):
    """Mappings, lists, text, numbers and switches; 1e-3 is a number, and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def fetch_anchor(self) -> NoReturn:
        """An anchor or an alias, by which a few lines become a value of gigabytes."""
        raise yaml.MarkedYAMLError(
            problem="anchors (&) and aliases (*) are not read, write the value out", problem_mark=self.get_mark()
        )

    fetch_alias = fetch_anchor

    # the time that the scanner takes grows with the square of the depth
    def fetch_flow_collection_start(self, token: Any) -> None:
        """A list or a mapping in brackets."""
        self._check_depth(self.flow_level)
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """A list or a mapping in lines."""
        self._check_depth(len(self.indents))
        return bool(super().add_indent(column))

    def _check_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="it nests too deeply", problem_mark=self.get_mark())


_PlainLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_plain(text: str) -> Any:
    """The value of a YAML text without anchors and aliases; YAMLError where the text is not that.

    Example:
        >>> load_plain("{weight: 1e-3, rows: [soft, WC]}")
        {'weight': 0.001, 'rows': ['soft', 'WC']}
    """
    return yaml.load(text, Loader=_PlainLoader)


def read_yaml(path: Path) -> dict[str, Any]:
    """The names and values of a YAML file: UTF-8, at most :data:`MAX_BYTES` bytes, without anchors and aliases.

    Raises:
        ValueError: The file is not that; the message names it. OSError where it cannot be read.
    """
    return mapping(bounded_text(path), path)


def bounded_text(path: Path) -> str:
    """The text of a configuration file; it raises what :func:`read_yaml` raises."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes, expected a configuration such as a config.yaml")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}), expected a config.yaml") from error


def mapping(text: str, path: Path) -> dict[str, Any]:
    """The names and values in the text of a configuration file; it raises what :func:`read_yaml` raises."""
    try:
        found = load_plain(text)
    except RecursionError as error:
        raise ValueError(f"{path} cannot be read: it nests too deeply") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number of too many digits
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{path} holds no names with values, expected lines such as 'seed: 0', as in a config.yaml")
    return found
