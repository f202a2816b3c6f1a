"""Few scenes and small networks, for end-to-end runs of the scripts on questions."""

from functools import cache

import pytest

from experiments.cli import run_commands
from experiments.data.questions.digit_questions import digit_questions
from experiments.vqa import model as vqa_data
from experiments.vqa.config import VQAConfig
from experiments.vqa.task import VQATask

TINY = {"hidden": 8, "layers": 1, "heads": 2, "batch_size": 32, "max_epochs": 1, "num_samples": 2, "progress": False}


@cache
def few_digits(views):
    return digit_questions(train=10, val=4, test=4, views=views)


def small_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digit scenes be few."""
    monkeypatch.setattr(vqa_data, "_digits", few_digits)


def run_tiny(folder, **options):
    """The metrics of a tiny run."""
    return VQATask().run(VQAConfig(**(TINY | {"out": folder} | options)))


def command(*words):
    """The exit code of a command."""
    return run_commands("experiments.vqa.config:COMMANDS", name="experiments.vqa", arguments=list(map(str, words)))
