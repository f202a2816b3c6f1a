"""Training scripts that are killed, whose disk is full or read-only, or whose folder another process holds."""

import errno
import os
import random
import signal
from dataclasses import dataclass, replace
from itertools import cycle
from typing import get_args

import pytest

from experiments.captioning.config import COMMANDS as CAPTIONING
from experiments.finetune.config import COMMANDS as FINETUNING
from experiments.graph.config import COMMANDS as GRAPHS
from experiments.harness.checkpoints import read_run
from experiments.harness.cli import run_script
from experiments.harness.options import SweepOptions, TrainingOptions
from experiments.headlines.config import COMMANDS as HEADLINES
from experiments.nmt.config import COMMANDS as TRANSLATION
from experiments.pretrain.config import COMMANDS as PRETRAINING
from experiments.vqa.config import COMMANDS as QUESTIONS
from guides.names import AblationSchemeName, SchemeName
from tests.experiments.harness.second_process import second_process
from tests.experiments.moments import FILES, Moments, forked, kill
from tests.experiments.training_scripts import EPOCHS, SCRIPTS, assert_same, left, small_data  # noqa: F401 (a fixture)

KILLS = 20
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
FAILURES = 12
SLOW = pytest.mark.slow
ALL = [name if name == "graph" else pytest.param(name, marks=SLOW) for name in SCRIPTS]


def often(most):
    """One script, and a few moments of it, for every day; all of them at length."""
    return [("graph", 3), *(pytest.param(name, most, marks=SLOW) for name in SCRIPTS)]


@dataclass(frozen=True)
class NoOptions:
    """No options."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def script(name, small_data):  # noqa: F811
    return SCRIPTS[name]


@pytest.fixture
def whole(script, data, tmp_path):
    """What a run leaves that nothing disturbs."""
    config = script.config(data, tmp_path / "whole")
    return left(config.out, script.run(config))


def moments_of(script, config, monkeypatch):
    with monkeypatch.context() as patch:
        moments = Moments(patch)
        script.run(config)
    return moments.kinds


def test_every_script_that_trains_is_tried():
    from experiments.harness.cli import _resolved

    tasks = (CAPTIONING, FINETUNING, GRAPHS, HEADLINES, PRETRAINING, QUESTIONS, TRANSLATION)
    found = {_resolved(command.config) for commands in tasks for command in commands.values()}
    found = {one for one in found if issubclass(one, TrainingOptions) and not issubclass(one, SweepOptions)}
    assert found == {script.config_type for script in SCRIPTS.values()}


@needs_fork
@pytest.mark.parametrize(("name", "count"), often(KILLS))
def test_killed_at_random_moments(name, count, script, whole, data, tmp_path, monkeypatch):
    kinds = moments_of(script, script.config(data, tmp_path / "counted"), monkeypatch)
    chosen = random.Random(0).sample(range(len(kinds)), count)
    assert "write" in {kinds[at] for at in chosen}  # a checkpoint takes most of the writes
    for at in chosen:
        config = script.config(data, tmp_path / str(at))

        def killed(config=config, at=at):
            Moments(monkeypatch, at=at, act=kill)
            script.run(config)

        assert forked(killed) == -signal.SIGKILL, (at, kinds[at])
        last = config.out / "checkpoints" / "last.ckpt"
        if last.exists():
            read_run(last)  # whole, whatever happened
        assert_same(left(config.out, script.run(replace(config, resume=True))), whole)
        assert not list(config.out.rglob("*.partial"))


GUIDES = get_args(SchemeName) + get_args(AblationSchemeName)
DAILY = ("weibull", "iwae", "wake_sleep")


@needs_fork
@pytest.mark.usefixtures("small_data")
@pytest.mark.parametrize("guide", [one if one in DAILY else pytest.param(one, marks=SLOW) for one in GUIDES])
def test_every_scheme_resumes_to_the_same_numbers(guide, data, tmp_path, monkeypatch):
    """Killed in the second epoch, behind a checkpoint."""
    whole, config = (SCRIPTS["captioning"].config(data, tmp_path / name, guide=guide) for name in ("whole", "killed"))
    with monkeypatch.context() as patch:
        moments = Moments(patch)
        expected = left(whole.out, SCRIPTS["captioning"].run(whole))
    steps = [at for at, kind in enumerate(moments.kinds) if kind == "step"]

    def killed():
        Moments(monkeypatch, at=steps[len(steps) // EPOCHS + 1], act=kill)
        SCRIPTS["captioning"].run(config)

    assert forked(killed) == -signal.SIGKILL
    assert_same(left(config.out, SCRIPTS["captioning"].run(replace(config, resume=True))), expected)


NUMBERS = (errno.ENOSPC, errno.EROFS, errno.EACCES)


@pytest.mark.parametrize(("name", "count"), often(FAILURES))
def test_a_disk_that_cannot_be_written(name, count, script, whole, data, tmp_path, monkeypatch, capsys):
    kinds = moments_of(script, script.config(data, tmp_path / "counted"), monkeypatch)
    places = [at for at, kind in enumerate(kinds) if kind in FILES]
    for number, at in zip(cycle(NUMBERS), random.Random(1).sample(places, count), strict=False):
        config = script.config(data, tmp_path / str(at))

        def fail(number=number):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            Moments(patch, at=at, act=fail)
            code = run_script(NoOptions, lambda _, config=config: script.run(config), name="script", arguments=[])
        said = capsys.readouterr().err.strip()
        assert code == 1, (at, kinds[at])
        assert said.startswith(f"error: {config.out}/")
        assert f"cannot be written: {os.strerror(number)}" in said
        assert len(said.splitlines()) == 1
        last = config.out / "checkpoints" / "last.ckpt"
        if last.exists():
            read_run(last)
        assert_same(left(config.out, script.run(replace(config, resume=True))), whole)


HOLDS = """
import sys
from pathlib import Path
from experiments.harness.folder import open_run
from experiments.harness.options import RunOptions

for folder in sys.argv[1:]:
    open_run(Path(folder), RunOptions())
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Folders that another process works in, and this process."""
    root = tmp_path_factory.mktemp("held")
    with second_process(HOLDS, *(root / name for name in SCRIPTS)) as other:
        yield root, other


@pytest.mark.parametrize("name", ALL)
def test_the_second_process_says_so_and_leaves(name, script, data, held, capsys):
    root, other = held
    config = script.config(data, root / name)
    before = {path: path.stat().st_mtime_ns for path in config.out.rglob("*")}
    assert run_script(NoOptions, lambda _: script.run(config), name="script", arguments=[]) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"error: {config.out} is in use by process {other.pid} on ")
    assert len(said.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in config.out.rglob("*")} == before
