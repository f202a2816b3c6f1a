"""The file that keeps an aligner: one file, a digest of all of it inside, and checks of sizes and ranges.

``aligner.safetensors`` holds the tables of the models and, as JSON in UTF-8, the words of both languages. A kill while
it is written leaves the old file. Its metadata name the format and the SHA-256 of everything else, so that a file that
was damaged, or put together from two, is refused and never aligns other words than it was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_attention.aligner._corpus import Ints, Vocabulary, WordPairs
from pyro_attention.aligner._ensemble import Ensemble
from pyro_attention.aligner._expectation import Direction
from pyro_attention.aligner.strings import CLASSES
from pyro_attention.aligner.text import Setting
from pyro_attention.atomic_write import write_atomic

__all__ = ["FILE", "load_ensemble", "save_ensemble"]

FILE = "aligner.safetensors"
_FORMAT = "4"
_OLD = "aligner.json"  # of formats 1 and 2, which had two files
_SIDES = ("source", "target")
_DIRECTIONS = ("forward", "backward")
_FIELDS = ("translation", "null", "jumps")
_COUNTS = ("members", "models")
Arrays = dict[str, NDArray[np.generic]]
Floats = NDArray[np.float32]
Contents = tuple[Ensemble, torch.Tensor, dict[str, Setting]]


def save_ensemble(folder: Path, ensemble: Ensemble, ratios: torch.Tensor, settings: Mapping[str, Setting]) -> None:
    """Write the ensemble of an aligner, its ratios and its settings into a folder, which is made where it is missing.

    Raises:
        ImportError: safetensors, of the extra ``align``, is not installed.
        OSError: The file cannot be written; one that was there is as it was.
    """
    from safetensors.numpy import save

    arrays: Arrays = {"ratios": ratios.float().numpy(), "keys": ensemble.pairs.keys}
    for side, vocabulary in zip(_SIDES, ensemble.vocabularies, strict=True):
        text = json.dumps(list(vocabulary.words), ensure_ascii=False)
        arrays[f"words.{side}"] = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    for row, member in enumerate(ensemble.members):
        for number, model in enumerate(member):
            for direction, tables in zip(_DIRECTIONS, model, strict=True):
                for field in _FIELDS:
                    arrays[f"{row}.{number}.{direction}.{field}"] = getattr(tables, field).float().numpy()
    metadata = {
        "format": _FORMAT, "members": str(len(ensemble.members)), "models": str(len(ensemble.members[0])),
        "settings": json.dumps(dict(settings)),
    }  # fmt: skip
    content = save(arrays, metadata | {"sha256": _digest(arrays, metadata)})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE, lambda file: file.write(content))


def load_ensemble(folder: Path) -> Contents:
    """Read what :func:`save_ensemble` has written.

    Raises:
        ImportError: safetensors is not installed.
        FileNotFoundError: The folder holds no aligner.
        ValueError: The file is damaged, or was written by another version.
    """
    path = folder / FILE
    if not path.is_file():
        if (folder / _OLD).is_file():
            raise ValueError(f"{folder} holds an aligner of an older version: train it again in another folder")
        raise FileNotFoundError(f"{folder} holds no aligner, expected {FILE} in it, as Aligner.save writes it")
    try:
        return _checked(*_read(path))
    except _DamageError as error:
        raise ValueError(f"the aligner in {folder} {error}; train it again, or copy {FILE} anew") from error


class _DamageError(Exception):
    """Damage of a file; its message continues "the aligner in FOLDER"."""


def _read(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata of a file whose digest is right."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OverflowError, ValueError, TypeError) as error:
        raise _DamageError(f"cannot be read ({error})") from error
    if metadata.get("format") != _FORMAT:
        raise _DamageError(f"has format {metadata.get('format')}, expected {_FORMAT}")
    if metadata.pop("sha256", None) != _digest(arrays, metadata):
        raise _DamageError("is damaged: its content is not that of its digest")
    return arrays, metadata


def _digest(arrays: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and values of all arrays, and of the metadata."""
    digest = sha256(json.dumps(sorted(metadata.items())).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _checked(arrays: Arrays, metadata: dict[str, str]) -> Contents:
    """Return ensemble, ratios and settings, once sizes and ranges are right."""
    members, models = (int(metadata[name]) if metadata.get(name, "").isdecimal() else 0 for name in _COUNTS)
    shared = ["ratios", "keys", *(f"words.{side}" for side in _SIDES)]
    stems = [f"{member}.{model}.{way}" for member, model, way in product(range(members), range(models), _DIRECTIONS)]
    names = [*shared, *(f"{stem}.{field}" for stem in stems for field in _FIELDS)]
    if not members or not models or {*names} != {*arrays}:
        raise _DamageError(f"has the arrays {', '.join(sorted(arrays))}, expected {', '.join(names)}")
    keys = cast("Ints", arrays["keys"])  # types and shapes are checked below
    weights = cast("dict[str, Floats]", arrays)
    _check_weights(weights["ratios"], "ratios", CLASSES)
    words = [_words(arrays[f"words.{side}"]) for side in _SIDES]
    sizes = len(words[0]), len(words[1])
    _check_keys(keys, sizes)
    for stem in stems:
        num_words = sizes[1] if stem.endswith(_DIRECTIONS[0]) else sizes[0]
        _check_direction({field: weights[f"{stem}.{field}"] for field in _FIELDS}, stem, len(keys), num_words)
    try:
        settings = dict(json.loads(metadata.get("settings", "")))
    except (ValueError, TypeError) as error:
        raise _DamageError(f"has settings that are no JSON ({error})") from error

    def direction(stem: str) -> Direction:
        return Direction(*(torch.from_numpy(arrays[f"{stem}.{field}"]) for field in _FIELDS))

    trained = [
        [(direction(f"{member}.{model}.forward"), direction(f"{member}.{model}.backward")) for model in range(models)]
        for member in range(members)
    ]
    vocabularies = Vocabulary.of([words[0]]), Vocabulary.of([words[1]])
    ensemble = Ensemble(vocabularies, WordPairs(keys, sizes), trained)
    return ensemble, torch.from_numpy(arrays["ratios"]), settings


def _check_keys(keys: Ints, sizes: tuple[int, int]) -> None:
    _check(keys.dtype == np.int64 and keys.ndim == 1 and bool((np.diff(keys) > 0).all()), "keys", "ascending int64")
    first, second = keys // (sizes[1] + 2), keys % (sizes[1] + 2)
    inside = (keys >= 0) & (first < sizes[0]) & (second < sizes[1])
    _check(bool(inside.all()), "keys", f"pairs of {sizes[0]} and {sizes[1]} words")


def _check_direction(arrays: Mapping[str, Floats], name: str, num_pairs: int, num_words: int) -> None:
    _check_weights(arrays["translation"], f"{name}.translation", num_pairs, largest=1.0)
    _check_weights(arrays["null"], f"{name}.null", num_words, largest=1.0)
    jumps = arrays["jumps"]
    _check(len(jumps) % 2 == 1 and bool((jumps > 0).all()), f"{name}.jumps", "an odd number of weights above 0")
    _check_weights(jumps, f"{name}.jumps", len(jumps))


def _words(array: NDArray[np.generic]) -> list[str]:
    try:
        words = json.loads(array.tobytes().decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise _DamageError(f"has words that are no JSON ({error})") from error
    fine = isinstance(words, list) and bool(words) and all(isinstance(word, str) for word in words)
    _check(fine and len({*words}) == len(words), "words", "a list of different words")
    return list(words)


def _check_weights(values: Floats, name: str, count: int, largest: float = np.inf) -> None:
    _check(values.dtype == np.float32 and values.shape == (count,), name, f"{count} numbers in float32")
    # sums in float32 may exceed 1 by rounding
    _check(bool((np.isfinite(values) & (values >= 0) & (values <= largest * (1 + 1e-3))).all()), name, "probabilities")


def _check(fine: bool, name: str, expected: str) -> None:
    if not fine:
        raise _DamageError(f"is damaged: {name} are not {expected}")
