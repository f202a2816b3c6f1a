"""Sentence pairs to translate, by the name of their data set."""

from pathlib import Path
from typing import Any

from experiments.datasets.discovery import import_readers
from experiments.datasets.places import check_split, data_folder
from experiments.datasets.text.parallel_text import PARALLEL, ParallelText, Rules, read_parallel

__all__ = ["PARALLEL", "ParallelText", "load_parallel", "read_parallel"]

import_readers("experiments.datasets.text.readers")


def load_parallel(
    name: str, split: str, *, source: str = "de", target: str = "en", data_root: Path | str | None = None, **rules: Any
) -> ParallelText:
    """Load one split of a data set of sentence pairs.

    The module of a data set in `experiments.datasets.text.readers` tells what it holds and where its files lie.

    Args:
        name: name of the data set, one of `PARALLEL`.
        split: "train", "val" or "test".
        source: language to translate from, such as "de".
        target: language to translate to.
        data_root: see `data_folder`.
        rules: what becomes of a line; fields of `Rules`.

    Raises:
        FileNotFoundError: files are missing and cannot be fetched; the message says which to put where.
        ValueError: an unknown name, split or language, a bad line, or a fetched file of another checksum.
    """
    reader = PARALLEL[name]
    check_split(split)
    unknown = [language for language in (source, target) if language not in reader.languages]
    if unknown or source == target:
        seen = f"no language is named {unknown[0]!r}" if unknown else f"source and target are both {source!r}"
        raise ValueError(f"{seen}; expected two different ones of those of {name}: {', '.join(reader.languages)}")
    return reader.read(data_folder(data_root), split, (source, target), Rules(**rules))
