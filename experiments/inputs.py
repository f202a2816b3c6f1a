"""Files that a command reads, looked for before anything that takes long is imported; no torch here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from experiments.files import UserError

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
    **dict.fromkeys(("rte", "mrpc", "cola", "sst2", "stsb", "mnli", "qnli", "qqp"), "glue"),
}


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
