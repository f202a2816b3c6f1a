"""What a crafted file does: one line of error that names it, and nothing else."""

import doctest
import os
import re
import subprocess
import tracemalloc

import pytest

from experiments.datasets import untrusted
from tests.experiments.datasets.hostile.arrays import ARCHIVES, CACHES
from tests.experiments.datasets.hostile.headlines import HEADLINES
from tests.experiments.datasets.hostile.lists import LISTS
from tests.experiments.datasets.hostile.pickles import PICKLES
from tests.experiments.datasets.hostile.pictures import PICTURES, TARS, picture
from tests.experiments.datasets.hostile.questions import QUESTIONS
from tests.experiments.datasets.hostile.texts import TEXTS

CASES = [*PICTURES, *TARS, *LISTS, *ARCHIVES, *CACHES, *PICKLES, *TEXTS, *HEADLINES, *QUESTIONS]
MOST_MEMORY = 64 * 2**20  # of what Python and numpy allocate


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)


def found(folder):
    """All that is below a folder, with what changes when it is written to."""
    return {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def no_programs(monkeypatch, tmp_path):
    """Whatever would start a program leaves the canary."""

    def start(*arguments, **options):
        (tmp_path / "canary").touch()
        raise OSError("started")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(os, "system", start)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_hostile_file(case, tmp_path, monkeypatch, no_programs):
    root = tmp_path / "data"
    write(tmp_path, {"outside/secret.jpg": picture(), "data/readme": b""})
    write(root, case.files)
    monkeypatch.chdir(tmp_path)
    before = found(tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, OSError)) as info:
            case.read(root)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(info.value)
    assert str(root / case.named) in message
    assert case.seen in message
    assert re.search("expected|[Rr]emove|Replace", message)
    assert len(message.splitlines()) == 1
    assert len(message) < 1000 + 4 * len(str(root))
    assert peak < MOST_MEMORY
    assert found(tmp_path) == before


def test_examples():
    assert doctest.testmod(untrusted).failed == 0


def test_every_case_has_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES) > 390
