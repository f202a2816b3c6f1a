"""The folder of a run and its files: one process at a time, whole files, a configuration that stays, --overwrite."""

import json
import math
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml
from filelock import FileLock

from experiments.captioning.config import CaptioningConfig
from experiments.files import UserError, write_atomic
from experiments.folder import open_run, read_metrics, saved_config, saved_options, write_metrics
from experiments.graph.config import GraphConfig
from experiments.nmt.config import TranslationConfig
from experiments.options import OptionError, RunOptions, configuration
from experiments.pretrain.config import PretrainConfig
from guides.names import AblationSchemeName, SchemeName
from guides.options import POSITIVE, AlignmentSchemeOptions


@dataclass(frozen=True, kw_only=True)
class Options(RunOptions):
    """A script.

    Args:
        weight: A number.
    """

    weight: float = 1.0


def begin(folder: Path, config: RunOptions) -> None:
    """Open a folder and let it go."""
    with open_run(folder, config):
        assert (folder / "config.yaml").is_file()


def names(folder: Path) -> set[str]:
    """Files in a folder; that of the lock is left out."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()}
    return found - {".lock"}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a run."""
    folder = tmp_path / "run"
    begin(folder, Options())
    write_metrics(folder, {"a": 1.0})
    for name in ("history.csv", "report.md", "checkpoints/last.ckpt", "figures/ours.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("ours")
    return folder


# --overwrite


def test_overwrite_empties_the_folder_and_leaves_what_links_point_to(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").touch()
    (finished / "more").symlink_to(tmp_path / "target")
    (finished / "figures" / "link.png").symlink_to(tmp_path / "target" / "mine")
    begin(finished, Options(weight=2.0, overwrite=True))
    assert names(finished) == {"config.yaml"}
    assert saved_options(finished)["weight"] == 2.0
    assert (tmp_path / "target" / "mine").is_file()


def test_hidden_files_that_a_folder_had_before_the_run_stay(tmp_path: Path) -> None:
    """They make no folder other than empty, so they are no part of the run that is removed."""
    hidden = (".git/config", ".gitignore")
    for name in hidden:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    begin(tmp_path, Options())
    write_metrics(tmp_path, {"a": 1.0})
    begin(tmp_path, Options(weight=2.0, overwrite=True))
    assert names(tmp_path) == {"config.yaml", *hidden}


@pytest.mark.parametrize("stops_at", ["metrics.json", "history.csv", "report.md", "last.ckpt", "ours.png"])
def test_overwrite_that_was_interrupted_can_be_repeated(
    stops_at: str, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.yaml, by which a folder is known to hold a run, goes at last, whatever the order of the files."""
    unlink, rmtree = Path.unlink, shutil.rmtree

    def stop(path: Path, *args: Any, **options: Any) -> None:
        if path.name == stops_at or (path / stops_at).exists():
            raise KeyboardInterrupt
        (rmtree if path.is_dir() else unlink)(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stop)
        patch.setattr(shutil, "rmtree", stop)
        # the order in which a file system lists them is not known
        listed = sorted(finished.iterdir(), key=lambda path: path.name != "config.yaml")
        patch.setattr(Path, "iterdir", lambda _: iter(listed))
        with pytest.raises(KeyboardInterrupt):
            begin(finished, Options(weight=2.0, overwrite=True))
    begin(finished, Options(weight=2.0, overwrite=True))
    assert names(finished) == {"config.yaml"}
    assert saved_options(finished)["weight"] == 2.0


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_with_files_of_others_is_refused_and_stays(options: dict[str, bool], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt but no config\.yaml: .* choose an empty --out"):
        begin(tmp_path, Options(**options))
    assert names(tmp_path) == {"notes.txt"}


@pytest.mark.parametrize("config", [None, "weight: 1.0\n"])
def test_overwrite_removes_nothing_where_there_is_no_run_of_ours(tmp_path: Path, config: str | None) -> None:
    (tmp_path / "metrics.json").write_text("mine")
    if config is not None:
        (tmp_path / "config.yaml").write_text(config)
    before = names(tmp_path)
    with pytest.raises(UserError, match="choose an"):
        begin(tmp_path, Options(overwrite=True))
    assert names(tmp_path) == before


# one process at a time, and whole files


def test_a_second_process_leaves_a_folder_that_is_held(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / ".lock")
    with lock, pytest.raises(UserError, match=f"^{tmp_path} is in use by another process; wait for it, or choose"):
        begin(tmp_path, RunOptions(resume=True))
    begin(tmp_path, RunOptions(resume=True))


def test_a_folder_is_let_go_when_the_run_ends(tmp_path: Path) -> None:
    folder = tmp_path / "inner"

    def stop() -> None:
        with open_run(folder, Options()):
            with pytest.raises(UserError, match="is in use by another process"):
                begin(folder, Options(resume=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    begin(folder, Options(resume=True))


def test_a_file_that_cannot_be_written_is_named_and_the_last_good_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("old")

    def write(file: Any) -> None:
        raise OSError(28, os.strerror(28))

    with pytest.raises(UserError, match=r"^file cannot be written: .*; make room for it, or choose another place"):
        write_atomic(Path("file"), write)
    assert Path("file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


# what a run is


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--resume to continue"),  # it is not started twice
        ({"resume": True, "weight": 2.0}, r"another configuration \(weight 1\.0 instead of 2\.0\)"),
        ({"resume": True, "overwrite": True}, "resume and overwrite are both set"),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_a_run_goes_on_with_the_same_configuration_alone(
    options: dict[str, Any], said: str, older: bool, finished: Path
) -> None:
    if older:  # a run from before an option has its default
        saved = yaml.safe_load((finished / "config.yaml").read_text())
        del saved["weight"]
        (finished / "config.yaml").write_text(yaml.safe_dump(saved))
    begin(finished, Options(resume=True, progress=False, device="cpu"))
    with pytest.raises(UserError, match=said):
        begin(finished, Options(**options))


TASKS: dict[str, Any] = {
    "graph": GraphConfig(), "nmt": TranslationConfig(), "captioning": CaptioningConfig(), "pretrain": PretrainConfig(),
}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_run_has_the_configuration_that_it_had(task: str, tmp_path: Path) -> None:
    config = replace(TASKS[task], data_root=tmp_path / "data", max_epochs=7)
    begin(tmp_path, config)
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text() + "of_a_later_release: 1\n")
    assert saved_config(tmp_path, type(config), script="script") == replace(config, out=tmp_path)
    if task == "graph":  # what the guide does not use is not said to be in force
        assert {"concentration", "prior"} <= saved_options(tmp_path).keys()
        assert not {"scale", "draws", "hybrid_share"} & saved_options(tmp_path).keys()
    path.write_text(path.read_text() + "dropout: 7\n")
    with pytest.raises(UserError, match=rf"^{path}: .*\bdropout\b.*; put the value of the training back"):
        saved_config(tmp_path, type(config), script="script")


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning_rate", 0), ("learning_rate", math.nan), ("kl_weight", math.inf), ("max_epochs", 1.5),
     ("guide", "nosuch"), ("hidden", None)],
)  # fmt: skip
def test_values_out_of_range(name: str, value: Any) -> None:
    """ValueError for Python, UserError for a script: one line that names the option."""
    with pytest.raises(ValueError, match=rf"\b{name}\b") as error:
        replace(TASKS["nmt"], **{name: value})
    assert isinstance(error.value, UserError)
    with pytest.raises(OptionError, match=rf"\b{name}\b"):
        configuration(TranslationConfig, asdict(TASKS["nmt"]) | {name: value})


def test_metrics_are_flat_and_valid_json(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) is None
    write_metrics(tmp_path, {"a": 0.5, "b": math.nan})
    content = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert content == {"a": 0.5, "b": None}
    assert read_metrics(tmp_path) == pytest.approx({"a": 0.5, "b": math.nan}, nan_ok=True)


# schemes out of options

CHANGES: dict[str, Any] = {
    "prior": "fixed", "kl_weight": 0.3, "concentration": 3.0, "scale": 0.3, "prior_rate": 2.0, "prior_scale": 2.0,
    "learnable": True, "draws": 3, "learned_width": True, "temperature": 0.1, "particles": 3, "top_k": 2,
    "roulette": 0.01, "kl_schedule": "sigmoid", "kl_steps": 3,
}  # fmt: skip


def scheme_parts(name: str, **changes: Any) -> str:
    """All that a scheme is made of."""
    torch.manual_seed(0)
    scheme = AlignmentSchemeOptions(**{"guide": name} | changes).build_scheme()
    modules = scheme.family, scheme.prior(4, 2)
    objective = dict(vars(scheme.objective()))
    if callable(weight := objective.get("kl_weight")):
        objective["kl_weight"] = [weight(step) for step in range(4)]
    return str([(one, [*one.named_parameters()], [*one.named_buffers()]) for one in modules] + [objective])


SCHEMES = [(name, "elbo", "constant") for name in get_args(SchemeName) + get_args(AblationSchemeName)]
SCHEMES += [(name, "evidence", "constant") for name in POSITIVE]
SCHEMES += [(name, "elbo", "linear") for name in ("weibull", "categorical_enum")]


@pytest.mark.parametrize(("name", "objective", "schedule"), SCHEMES)
def test_a_scheme_uses_the_options_that_it_says(name: str, objective: str, schedule: str) -> None:
    base: dict[str, Any] = {"objective": objective, "kl_schedule": schedule}
    changes = CHANGES | {"objective": "elbo" if objective == "evidence" else "evidence"}
    changed = {
        option
        for option, value in changes.items()
        if scheme_parts(name, **base) != scheme_parts(name, **base | {option: value})
    }
    without_kl = {"kl_weight", "kl_schedule"} if name in ("soft", "hard_sample") else set()
    chosen = {"guide": name, **base}
    declared = [vars(declaring).get("USED_BY", {}) for declaring in AlignmentSchemeOptions.__mro__]
    uses = [entry for choices in declared for entry in choices.items()]
    used = {option for option, choices in uses if all(chosen[choice] in values for choice, values in choices.items())}
    assert used == changed - without_kl
