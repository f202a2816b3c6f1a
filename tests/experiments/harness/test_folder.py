"""The folder of a run: one process at a time, and what --overwrite removes."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from matplotlib.figure import Figure

from experiments.files import UserError
from experiments.harness import folder as folder_module
from experiments.harness.folder import exclusive, open_results, open_run, saved_options
from experiments.harness.options import RunOptions
from experiments.harness.results import read_metrics, write_environment, write_metrics
from experiments.report.figures import save
from experiments.report.results import source_of
from tests.experiments.harness.second_process import second_process

OPENS = """
import sys
from pathlib import Path
from experiments.harness.folder import open_run
from experiments.harness.options import RunOptions

open_run(Path(sys.argv[1]), RunOptions())
print("holds", flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """A script."""

    weight: float = 1.0


def overwrite(folder: Path) -> None:
    open_run(folder, Options(weight=2.0, overwrite=True))


def names(folder: Path) -> set[str]:
    """Files in a folder; those of the lock are left out."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}
    return found - {".lock", ".holder"}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a run."""
    folder = tmp_path / "run"
    open_run(folder, Options())
    write_metrics(folder, {"a": 1.0}, {"a": "one"})
    names = ("history.csv", "report.html", "checkpoints/last.ckpt", "tensorboard/events.out.tfevents.1.host.2.0")
    for name in (*names, "checkpoints/best.safetensors", "checkpoints/best.ckpt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("ours")
    save(Figure((1, 1)), folder / "figures" / "ours.png")
    return folder


# --overwrite


def test_overwrite_removes_what_the_run_has_written(finished: Path) -> None:
    overwrite(finished)
    assert names(finished) == {"config.yaml"}
    assert not (finished / "figures").exists()
    assert not (finished / "checkpoints").exists()
    assert not (finished / "tensorboard").exists()
    assert saved_options(finished)["weight"] == 2.0


MINE = (
    "notes.txt",
    "tensorboard/notes.txt",
    "figures/notes.png",
    "figures/ours-copy.png",
    "figures/more/picture.png",
    "checkpoints/mine.ckpt",
)


@pytest.mark.parametrize("name", MINE)
def test_overwrite_leaves_what_the_user_has_put_there(finished: Path, name: str) -> None:
    (finished / name).parent.mkdir(exist_ok=True)
    (finished / name).write_bytes((finished / "figures" / "ours.png").read_bytes())
    overwrite(finished)
    assert names(finished) == {"config.yaml", name}


@pytest.mark.parametrize("name", ["figures/notes.png", "checkpoints/best.safetensors", "metrics.json", "report.html"])
@pytest.mark.parametrize("config", [None, "weight: 1.0\n"])
def test_overwrite_removes_nothing_where_there_is_no_run_of_ours(tmp_path: Path, name: str, config: str | None) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    before = names(tmp_path)
    with pytest.raises(UserError, match="choose another"):
        overwrite(tmp_path)
    assert names(tmp_path) == before
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize("name", ["checkpoints/last.ckpt", "metrics.json", "figures"])
def test_overwrite_leaves_what_a_symbolic_link_points_to(finished: Path, tmp_path: Path, name: str) -> None:
    (finished / name).rename(tmp_path / "target")
    (finished / name).symlink_to(tmp_path / "target")
    before = names(tmp_path / "target")
    overwrite(finished)
    assert names(finished) == {"config.yaml"} | ({"figures"} if name == "figures" else set())
    assert (tmp_path / "target").exists()
    assert names(tmp_path / "target") == before


@pytest.mark.parametrize("mine", [set(), {"notes.txt"}])
def test_overwrite_in_a_new_folder_or_beside_other_files(tmp_path: Path, mine: set[str]) -> None:
    for name in mine:
        (tmp_path / name).write_text("mine")
    overwrite(tmp_path if mine else tmp_path / "new")
    assert names(tmp_path if mine else tmp_path / "new") == {"config.yaml", *mine}


@pytest.mark.parametrize(("name", "options"), [("report.html", Options()), ("metrics.json", Options(resume=True))])
def test_results_without_a_configuration_are_not_written_over(tmp_path: Path, name: str, options: Options) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match=r"no config\.yaml; choose another --out"):
        open_run(tmp_path, options)


@pytest.mark.parametrize("name", ["checkpoints/.last.ckpt", "..holder"])
def test_resuming_removes_what_a_killed_process_has_left(finished: Path, name: str) -> None:
    partial = finished / f"{name}.0123456789abcdef.partial"
    partial.touch()
    folder_module._held.pop(finished.resolve()).release()
    open_run(finished, Options(resume=True))
    assert not partial.exists()


# one process at a time


def test_a_second_process_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with second_process(OPENS, tmp_path) as other:
        who = rf"process {other.pid} on {platform.node()} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"
        with pytest.raises(UserError, match=f"^{tmp_path} is in use by {who}; wait for it, or choose another --out$"):
            open_run(tmp_path, RunOptions(resume=True))
        other.kill()
        other.wait()
        # what a killed process held is free
        open_run(tmp_path, RunOptions(resume=True))
        assert f"process {os.getpid()} " in (tmp_path / ".holder").read_text()


def test_a_folder_is_let_go_when_the_run_ends(tmp_path: Path) -> None:
    @exclusive
    def run(fails: bool) -> None:
        open_run(tmp_path / "inner", Options(overwrite=True))
        if fails:
            raise KeyboardInterrupt

    open_run(tmp_path, Options())
    for fails in (False, True):
        if fails:
            with pytest.raises(KeyboardInterrupt):
                run(fails)
        else:
            run(fails)
        assert tmp_path.resolve() in folder_module._held
        assert (tmp_path / "inner").resolve() not in folder_module._held
        with second_process(OPENS.replace("RunOptions()", "RunOptions(resume=True)"), tmp_path / "inner"):
            pass


def test_a_run_can_be_read_where_nothing_can_be_written(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", ".lock")

    folder_module._held.pop(finished.resolve()).release()
    monkeypatch.setattr(folder_module.FileLock, "acquire", refuse)
    monkeypatch.setattr(folder_module, "write_atomic", pytest.fail)
    open_run(finished, Options(resume=True))
    open_run(finished, Options(resume=True), free=("weight",))
    assert finished.resolve() not in folder_module._held
    assert read_metrics(finished) == {"a": 1.0}


# results of scripts without a run


def test_results_of_the_same_script_only(tmp_path: Path, finished: Path) -> None:
    import torch

    folder = tmp_path / "bench"
    for _ in range(2):
        open_results(folder, "experiments.benchmarks.a")
        write_environment(folder, torch.device("cpu"), script="experiments.benchmarks.a")
        write_metrics(folder, {}, {})
    with pytest.raises(UserError, match=r"holds metrics\.json, which experiments\.benchmarks\.b has not written"):
        open_results(folder, "experiments.benchmarks.b")
    with pytest.raises(UserError, match=r"holds config\.yaml, which"):
        open_results(finished, "experiments.benchmarks.a")


# options that came later


@pytest.mark.parametrize(("weight", "resumes"), [(1.0, True), (2.0, False)])
def test_a_run_from_before_an_option_has_its_default(finished: Path, weight: float, resumes: bool) -> None:
    path = finished / "config.yaml"
    saved = yaml.safe_load(path.read_text())
    del saved["weight"]
    path.write_text(yaml.safe_dump(saved))
    if resumes:
        open_run(finished, Options(weight=weight, resume=True))
    else:
        with pytest.raises(UserError, match=r"another configuration \(weight 1.0 instead of 2.0\)"):
            open_run(finished, Options(weight=weight, resume=True))


# damaged files


@pytest.mark.parametrize("content", ["", "a: ["])
@pytest.mark.parametrize("options", [Options(resume=True), Options(overwrite=True)])
def test_damaged_configuration(finished: Path, content: str, options: Options) -> None:
    (finished / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=rf"^{finished / 'config.yaml'} .*; put an intact copy there, or") as error:
        open_run(finished, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ['{"a": 1}', '{"a": "x", "definitions": {"a": "one"}}'])
def test_damaged_metrics(finished: Path, content: str) -> None:
    (finished / "metrics.json").write_text(content)
    with pytest.raises(UserError, match=rf"^{finished / 'metrics.json'} .*; remove it, and the same command"):
        read_metrics(finished)


@pytest.mark.parametrize("content", ["{}", '{"device": "cpu", "cpus": 1, "system": "x", "packages": 1}'])
def test_damaged_environment(finished: Path, content: str) -> None:
    (finished / "environment.json").write_text(content)
    with pytest.raises(UserError, match=rf"^{finished / 'environment.json'} .*; remove the folder"):
        source_of([finished], "command")


def test_saved_options_are_plain(finished: Path) -> None:
    assert saved_options(finished) == yaml.safe_load((finished / "config.yaml").read_text())
    assert not {"resume", "overwrite"} & saved_options(finished).keys()
