"""Tiny trained networks that many tests look at, and none changes."""

import pytest

from tests.experiments.vqa.tiny_questions import run_tiny, small_scenes


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


@pytest.fixture(scope="session")
def weibull_run(tmp_path_factory):
    """Folder of a finished run of MCAN with Weibull attention."""
    folder = tmp_path_factory.mktemp("vqa") / "run"
    with pytest.MonkeyPatch.context() as patch:
        small_scenes(patch)
        run_tiny(folder, guide="weibull")
    return folder
