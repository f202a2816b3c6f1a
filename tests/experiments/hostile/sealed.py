"""What a reader of a stranger's file must not do, checked around it."""

import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.experiments.datasets.test_hostile_files import MOST_MEMORY, found


@contextmanager
def sealed(folder: Path, monkeypatch: pytest.MonkeyPatch, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Fail where what happens inside starts a program, allocates too much, or changes a file below the folder.

    Files whose names begin with one of ``but`` may change: those that our own locks leave, say.
    """

    def start(*_: object, **__: object) -> None:
        (folder / "canary").touch()
        raise OSError("started")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        patch.setattr(os, "system", start)
        patch.chdir(folder)
        before = _seen(folder, but)
        tracemalloc.start()
        try:
            yield
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert _seen(folder, but) == before


def _seen(folder: Path, but: tuple[str, ...]) -> dict[Path, object]:
    ours = {path: told for path, told in found(folder).items() if not path.name.startswith(but)}
    # a folder changes when a lock in it comes
    return {path: None if path.is_dir() and not path.is_symlink() else told for path, told in ours.items()}
