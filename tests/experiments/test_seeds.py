"""The seed of a run decides its initial weights, whatever was drawn in the process before."""

from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

from experiments.neural_process.config import NeuralProcessConfig
from experiments.neural_process.task import NeuralProcessTask
from experiments.pretrain.task import build_classifier
from experiments.run import Task
from tests.experiments.training_scripts import SCRIPTS, Script, small_data, untrained  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("small_data")
NEURAL_PROCESS = {"functions": 4, "steps": 2, "num_samples": 2}
TASKS = {**SCRIPTS, "neural_process": Script(NeuralProcessConfig, NeuralProcessTask().run, lambda _: NEURAL_PROCESS)}


# every kind of part that is drawn: networks of the weights, of a width, of the posterior, of the prior
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TASKS),
    *((name, {"objective": "evidence"}) for name in ("coverage", "neural_process")),
    *(
        (name, {"objective": "evidence", "learned_width": True})
        for name in ("graph", "vqa", "nmt", "captioning", "glue")
    ),
    *((name, {"guide": guide}) for name in ("nmt", "captioning") for guide in ("categorical_enum", "dirichlet")),
    ("vqa", {"model": "bottom_up", "guide": "categorical_enum"}),
    ("graph", {"architecture": "gat_sep", "normalizer": "hybrid"}),
    ("graph", {"edge_noise": 0.5, "feature_noise": 0.5, "labels_per_class": 1}),
    ("coverage", {"toy": "noise", "objective": "elbo"}),
]
"""A task, and the options that differ from its tiny run."""


def task_of(script: Script) -> Task[Any, Any]:
    run: Any = script.run
    task: Task[Any, Any] = run.__self__
    return task


def restored(script: Script, config: Any) -> Any:
    """Networks that a run's folder gives."""
    return task_of(script).restore(config, config.out)


def initial_weights(script: Script, config: Any, before: int) -> dict[str, torch.Tensor]:
    """Initial weights of all networks of a run that begins where the random generators are in another state."""
    pyro.set_rng_seed(before)
    module = untrained(script, config)
    state = torch.get_rng_state()  # of which the noise of the first step is drawn
    networks = restored(script, config)
    modules = [module, *getattr(networks, "modules", [networks.module])]
    values = {f"{place}.{name}": value for place, one in enumerate(modules) for name, value in one.state_dict().items()}
    return values | {"random state": state}


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    differ = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert differ == []


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_the_seed_decides_the_initial_weights(name, options, data, tmp_path):
    script = TASKS[name]

    def weights(folder: Path, before: int, **more: Any) -> dict[str, torch.Tensor]:
        return initial_weights(script, script.config(data, folder, **options, **more), before)

    first, second = (weights(tmp_path / str(before), before) for before in (1, 2))
    assert_equal(first, second)
    other = weights(tmp_path / "other", 1, seed=7)
    assert any(not torch.equal(value, other[key]) for key, value in first.items() if value.shape == other[key].shape)


@pytest.mark.parametrize("scratch", [True, False])
def test_the_seed_decides_the_initial_weights_of_a_fine_tuned_encoder(scratch, data, tmp_path):
    script = TASKS["pretrain"]
    config = script.config(data, tmp_path / "run")
    initial_weights(script, config, 0)
    start = restored(script, config)
    states = []
    for before in (1, 2):
        pyro.set_rng_seed(before)
        states.append(build_classifier(start, scratch=scratch).module.state_dict())
    assert_equal(*states)
