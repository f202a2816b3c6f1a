"""Training scripts that are killed, or whose folder another process holds."""

import os
import random
from dataclasses import replace
from typing import get_args

import pytest

from experiments import callbacks
from experiments.callbacks import read_run
from experiments.cli import _resolved
from experiments.options import SweepOptions, TrainingOptions
from guides.names import AblationSchemeName, SchemeName
from tests.experiments.moments import Moments, killed
from tests.experiments.test_command_line import SUBCOMMANDS
from tests.experiments.training_scripts import EPOCHS, SCRIPTS, assert_same, left, small_data  # noqa: F401 (a fixture)

KILLS = 20
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


def whole_run(script, config, monkeypatch):
    """What a run leaves that nothing disturbs, and its moments."""
    with monkeypatch.context() as patch:
        moments = Moments(patch)
        return left(config.out, script.run(config)), moments.kinds


def test_every_script_that_trains_is_tried():
    found = {_resolved(command.config) for commands in SUBCOMMANDS.values() for command in commands.values()}
    found = {one for one in found if issubclass(one, TrainingOptions) and not issubclass(one, SweepOptions)}
    assert found == {script.config_type for script in SCRIPTS.values()}


# one script, and a few moments of it, for every day; all of them at length
@pytest.mark.parametrize(("name", "count"), [("graph", 3), *(pytest.param(one, KILLS, marks=SLOW) for one in SCRIPTS)])
def test_killed_at_random_moments(name, count, data, tmp_path, monkeypatch):
    script = SCRIPTS[name]
    whole, kinds = whole_run(script, script.config(data, tmp_path / "whole"), monkeypatch)
    for at in random.Random(0).sample(range(len(kinds)), count):
        config = script.config(data, tmp_path / str(at))
        killed(lambda config=config: script.run(config), monkeypatch, at=at)
        last = config.out / "checkpoints" / "last.ckpt"
        if last.exists():
            read_run(last)  # whole, whatever happened
        assert_same(left(config.out, script.run(replace(config, resume=True))), whole)


GUIDES = get_args(SchemeName) + get_args(AblationSchemeName)
DAILY = ("weibull", "iwae")


@pytest.mark.parametrize("guide", [one if one in DAILY else pytest.param(one, marks=SLOW) for one in GUIDES])
def test_every_scheme_resumes_to_the_same_numbers(guide, data, tmp_path, monkeypatch):
    """Killed in the second epoch, behind a checkpoint."""
    script = SCRIPTS["captioning"]
    expected, kinds = whole_run(script, script.config(data, tmp_path / "whole", guide=guide), monkeypatch)
    steps = [at for at, kind in enumerate(kinds) if kind == "step"]
    config = script.config(data, tmp_path / "killed", guide=guide)
    killed(lambda: script.run(config), monkeypatch, at=steps[len(steps) // EPOCHS + 1])
    assert_same(left(config.out, script.run(replace(config, resume=True))), expected)
