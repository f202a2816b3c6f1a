"""Configuration files, read with a bounded size and without what lets a small YAML file fill the memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

__all__ = ["MAX_BYTES", "bounded_text", "mapping", "read_yaml", "refuse_anchors"]

MAX_BYTES = 2**16  # a config.yaml of the scripts has less than a twentieth of it


def read_yaml(path: Path) -> dict[str, Any]:
    """The names and values of a configuration file.

    Args:
        path: The file: a YAML mapping, UTF-8, of at most :data:`MAX_BYTES` bytes, without anchors and aliases.

    Raises:
        ValueError: The file is not that; the message names it.
        OSError: The file cannot be read.
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
        refuse_anchors(text)
        found = yaml.safe_load(text)
    except RecursionError as error:
        raise ValueError(f"{path} cannot be read: it nests too deeply") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: there is no such day, or a number has too many digits
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{path} holds no names with values, expected lines such as 'seed: 0', as in a config.yaml")
    return found


def refuse_anchors(text: str) -> None:
    """Refuse anchors and aliases, by which a few lines become a value of gigabytes.

    Raises:
        YAMLError: There is one, or the text is no YAML.
    """
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AnchorToken | yaml.AliasToken):
            raise yaml.MarkedYAMLError(
                problem=f"anchors and aliases ('{token.value}') are not read, write the value out",
                problem_mark=token.start_mark,
            )
