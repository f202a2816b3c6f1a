"""Few scenes and small networks, for end-to-end runs of the scripts on questions."""

from functools import cache

import pytest

from experiments.datasets.questions.digit_questions import digit_questions
from experiments.vqa import data as vqa_data
from experiments.vqa.config import VQAConfig

TINY = {"hidden": 8, "layers": 1, "heads": 2, "batch_size": 32, "max_epochs": 1, "num_samples": 3, "progress": False}


@cache
def few_digits(views):
    return digit_questions(train=20, val=6, test=6, views=views)


def small_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digit scenes be few."""
    monkeypatch.setattr(vqa_data, "_digits", few_digits)


def tiny_config(folder, **options):
    return VQAConfig(**(TINY | {"out": folder} | options))


def tiny_options() -> list[str]:
    """The command line of a tiny run."""
    options = [(f"--{name.replace('_', '-')}", str(value)) for name, value in TINY.items() if name != "progress"]
    return [word for pair in options for word in pair] + ["--no-progress"]
