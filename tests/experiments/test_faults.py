"""Training scripts that are killed in the middle of an epoch."""

import os
import signal
from dataclasses import replace
from typing import get_args

import pytest
import torch

from experiments.captioning.config import COMMANDS as CAPTIONING
from experiments.finetune.config import COMMANDS as FINETUNING
from experiments.graph.config import COMMANDS as GRAPHS
from experiments.harness import callbacks
from experiments.harness.callbacks import read_run
from experiments.harness.cli import _resolved
from experiments.harness.options import SweepOptions, TrainingOptions
from experiments.headlines.config import COMMANDS as HEADLINES
from experiments.nmt.config import COMMANDS as TRANSLATION
from experiments.pretrain.config import COMMANDS as PRETRAINING
from experiments.vqa.config import COMMANDS as QUESTIONS
from guides.names import AblationSchemeName, SchemeName
from tests.experiments.training_scripts import EPOCHS, SCRIPTS, assert_same, left, small_data  # noqa: F401 (a fixture)

SLOW = pytest.mark.slow
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.usefixtures("small_data"),
]


@pytest.fixture(autouse=True)
def every_epoch(monkeypatch):
    """A checkpoint after every epoch."""
    monkeypatch.setattr(callbacks, "SECONDS", 0.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def killed(run, *, at=None):
    """Run something whose training is killed at a step, in a copy of this process; else the number of its steps."""
    steps, backward = [0], torch.Tensor.backward

    def counted(*args, **options):
        if steps[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        steps[0] += 1
        return backward(*args, **options)

    torch.Tensor.backward = counted
    try:
        if at is None:
            return run(), steps[0]
        if (process := os.fork()) == 0:
            try:
                run()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    finally:
        torch.Tensor.backward = backward
    return None


def assert_resumes(name, data, folder, **changes):
    """Killed in the second epoch, behind a checkpoint, a script ends with the numbers of one that nothing disturbs."""
    script = SCRIPTS[name]
    config = script.config(data, folder / "whole", **changes)
    metrics, steps = killed(lambda: script.run(config))
    again = script.config(data, folder / "killed", **changes)
    killed(lambda: script.run(again), at=steps // EPOCHS + 1)
    read_run(again.out / "checkpoints" / "last.ckpt")
    assert_same(left(again.out, script.run(replace(again, resume=True))), left(config.out, metrics))


def test_every_script_that_trains_is_tried():
    tasks = (CAPTIONING, FINETUNING, GRAPHS, HEADLINES, PRETRAINING, QUESTIONS, TRANSLATION)
    found = {_resolved(command.config) for commands in tasks for command in commands.values()}
    found = {one for one in found if issubclass(one, TrainingOptions) and not issubclass(one, SweepOptions)}
    assert found == {script.config_type for script in SCRIPTS.values()}


@pytest.mark.parametrize("name", [one if one == "graph" else pytest.param(one, marks=SLOW) for one in SCRIPTS])
def test_every_script_resumes_to_the_same_numbers(name, data, tmp_path):
    assert_resumes(name, data, tmp_path)


GUIDES = get_args(SchemeName) + get_args(AblationSchemeName)
DAILY = ("weibull", "iwae")


@pytest.mark.parametrize("guide", [one if one in DAILY else pytest.param(one, marks=SLOW) for one in GUIDES])
def test_every_scheme_resumes_to_the_same_numbers(guide, data, tmp_path):
    assert_resumes("captioning", data, tmp_path, guide=guide)
