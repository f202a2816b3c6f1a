"""Tiny trained networks that many tests look at, and none changes."""

import pytest

from tests.experiments.datasets.questions.tiny_questions import write_easy_vqa
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


@pytest.fixture(scope="session")
def easy_run(tmp_path_factory):
    """Folder of a finished run on photographs, beside its data."""
    root = tmp_path_factory.mktemp("easy")
    write_easy_vqa(root)
    options = {"encoder_epochs": 1, "test_noise": (0.0,), "guide": "weibull", "data_root": root}
    run_tiny(root / "run", dataset="easy_vqa", **options)
    return root / "run"
