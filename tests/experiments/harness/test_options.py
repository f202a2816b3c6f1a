"""Values of configurations are checked wherever they come from: the command line, a file or Python."""

import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml

from experiments.captioning.config import CaptioningConfig
from experiments.files import UserError
from experiments.graph.config import GraphConfig
from experiments.harness.folder import open_run, saved_config
from experiments.harness.options import OptionError, configuration
from experiments.nmt.config import TranslationConfig
from experiments.pretrain.config import FinetuneConfig, PretrainConfig
from guides import build_scheme
from guides.names import AblationSchemeName, SchemeName, WeightsSchemeName
from guides.options import AlignmentSchemeOptions

# values that are no defaults
CHANGES = {
    "prior": "fixed", "kl_weight": 0.3, "concentration": 3.0, "scale": 0.3, "prior_rate": 2.0, "prior_scale": 2.0,
    "learnable": True, "temperature": 0.1, "particles": 3, "top_k": 2, "roulette": 0.01,
}  # fmt: skip
TASKS = {
    "graph": GraphConfig(),
    "nmt": TranslationConfig(),
    "captioning": CaptioningConfig(),
    "pretrain": PretrainConfig(),
    "finetune": FinetuneConfig(run=Path("run")),
}
BAD: list[tuple[str, Any]] = [
    ("learning_rate", 0),
    ("learning_rate", float("nan")),
    ("learning_rate", float("inf")),
    ("kl_weight", -1e-3),
    ("kl_weight", float("inf")),
    ("max_epochs", 0),
    ("max_epochs", 1.5),
    ("num_samples", -1),
    ("checkpoint_every", 0),
    ("seed", -1),
    ("precision", "64"),
    ("device", "abacus"),
    ("progress", "perhaps"),
]
OF_SOME: list[tuple[str, str, Any]] = [
    *((task, "dropout", value) for task in ("graph", "nmt", "captioning", "pretrain") for value in (7, 1.0, -0.1)),
    *((task, "hidden", 0) for task in ("graph", "nmt", "captioning")),
    *((task, "normalizer", "nosuch") for task in ("graph", "nmt", "pretrain")),
    *((task, "guide", "nosuch") for task in ("graph", "nmt", "captioning", "pretrain")),
    ("pretrain", "width", -3),
    ("pretrain", "masked", 1.0),
    ("pretrain", "hybrid_share", 1.5),
    ("graph", "feature_noise", 1.5),
    ("captioning", "size", 0),
    ("finetune", "pooling", "last"),
]
CASES = [*((task, *bad) for task in TASKS for bad in BAD), *OF_SOME]


@pytest.mark.parametrize(("task", "name", "value"), CASES)
def test_values_out_of_range(task: str, name: str, value: Any) -> None:
    """ValueError for Python, UserError for a script: one line that names the option."""
    with pytest.raises(ValueError, match=rf"\b{name}\b") as error:
        replace(TASKS[task], **{name: value})
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)
    with pytest.raises(OptionError, match=rf"\b{name}\b"):
        configuration(type(TASKS[task]), asdict(TASKS[task]) | {name: value})


def scheme_parts(name: str, **changes: Any) -> str:
    """All that a scheme is made of."""
    torch.manual_seed(0)
    scheme = AlignmentSchemeOptions(**{"guide": name} | changes).build_scheme()
    modules = scheme.family, scheme.prior(4, 2)
    return str([(one, [*one.named_parameters()], [*one.named_buffers()]) for one in modules] + [vars(scheme.elbo)])


@pytest.mark.parametrize("name", get_args(SchemeName) + get_args(AblationSchemeName))
def test_a_scheme_uses_the_options_that_it_says(name: str) -> None:
    changed = {
        option for option, value in CHANGES.items() if scheme_parts(name) != scheme_parts(name, **{option: value})
    }
    without_kl = {"kl_weight"} if name in ("soft", "hard_sample") else set()
    used = {option for option, choices in AlignmentSchemeOptions.USED_BY.items() if name in choices["guide"]}
    assert used == changed - without_kl


@pytest.mark.parametrize("task", TASKS)
def test_a_saved_configuration_is_the_same_again(task: str, tmp_path: Path) -> None:
    config = replace(TASKS[task], data_root=tmp_path / "data", max_epochs=7)
    open_run(tmp_path, config)
    found = configuration(type(config), yaml.safe_load((tmp_path / "config.yaml").read_text()))
    assert found == config
    assert pickle.loads(pickle.dumps(found)) == config


def test_values_of_a_saved_run_are_checked(tmp_path: Path) -> None:
    open_run(tmp_path, TASKS["nmt"])
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"dropout": 7}))
    with pytest.raises(UserError, match=rf"^{path}: .*\bdropout\b.*; put the value of the training back"):
        saved_config(tmp_path, TranslationConfig, script="script")


def test_options_of_other_releases_do_not_matter_in_a_saved_run(tmp_path: Path) -> None:
    open_run(tmp_path, TASKS["nmt"])
    path = tmp_path / "config.yaml"
    path.write_text(path.read_text() + "of_a_later_release: 1\n")
    found = saved_config(tmp_path, TranslationConfig, script="script", device="cpu")
    assert found == replace(TASKS["nmt"], out=tmp_path, device="cpu")  # type: ignore[type-var]


@pytest.mark.parametrize("value", ["", " "])
def test_an_unset_shell_variable_is_not_the_current_folder(value: str) -> None:
    for option in ("out", "data_root", "text", "init_from"):
        with pytest.raises(OptionError, match=r"an empty name \(is a shell variable unset\?\), expected a file or"):
            configuration(TranslationConfig, {option: value})
    assert configuration(TranslationConfig, {"out": "."}).out == Path()


@pytest.mark.parametrize("task", ["graph", "nmt", "captioning", "pretrain"])
@pytest.mark.parametrize("guide", get_args(WeightsSchemeName))
def test_every_task_builds_its_scheme_from_the_same_options(task: str, guide: Any) -> None:
    options: dict[str, Any] = {"concentration": 3.0, "scale": 0.2, "prior_rate": 2.0, "prior_scale": 3.0}
    config: Any = replace(TASKS[task], guide=guide, **options, learnable=True)
    found = config.build_scheme(kl_weight=0.5)
    expected = build_scheme(guide, prior=config.prior, kl_weight=0.5, learnable=True, **options)
    assert repr(found.family) == repr(expected.family)
    assert repr(found.prior(4, 1)) == repr(expected.prior(4, 1))
    assert found.elbo.kl_weight == 0.5
