"""The weight of the KL rises from a small value in every training command: in a line, or along a sigmoid."""

import csv

import pytest

from experiments.options import OptionError
from pyro_attention import AttentionELBO
from pyro_attention.schedules import rising
from tests.experiments.test_seeds import TASKS
from tests.experiments.training_scripts import small_data, untrained  # noqa: F401 (a fixture)

pytestmark = pytest.mark.usefixtures("small_data")
ELBO = {"objective": "elbo"}
OPTIONS = {name: {"guide": "weibull"} for name in TASKS} | {"coverage": ELBO, "neural_process": ELBO}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def weight_of(name, data, folder, **options):
    script, out = TASKS[name], folder / "-".join(map(str, options.values()))
    elbo = untrained(script, script.config(data, out, **OPTIONS[name], **options)).objective.elbo
    assert isinstance(elbo, AttentionELBO)
    return elbo.kl_weight


@pytest.mark.parametrize("name", TASKS)
def test_every_command_anneals_the_weight(name, data, tmp_path):
    constant = weight_of(name, data, tmp_path, kl_schedule="constant")
    assert isinstance(constant, float)
    assert constant > 0
    for shape, shares in (("linear", (0, 0.5, 1, 1)), ("sigmoid", (0.0067, 0.5, 0.9933, 1))):
        weight = weight_of(name, data, tmp_path, kl_schedule=shape, kl_steps=40)
        found = [weight(step) / constant for step in (0, 20, 40, 10_000)]
        assert found == pytest.approx(shares, abs=1e-4)


def test_the_weight_of_a_training_rises_step_by_step(data, tmp_path):
    script = TASKS["graph"]  # where an epoch is a step
    config = script.config(data, tmp_path / "run", kl_schedule="sigmoid", kl_steps=4, max_epochs=6, kl_scale="total")
    script.run(config)
    with (tmp_path / "run" / "history.csv").open() as file:
        found = [float(row["kl_weight"]) for row in csv.DictReader(file)]
    expected = [rising("sigmoid", 4, config.kl_weight)(step) for step in range(6)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_fine_tuning_takes_a_share_of_the_steps(data, tmp_path):
    whole = weight_of("glue", data, tmp_path, kl_warmup=0.0)
    assert isinstance(whole, float)
    steps = 5 * 3  # 36 examples in batches of 8, three epochs
    for shape, first in (("linear", 0.0), ("sigmoid", 0.0067)):
        weight = weight_of("glue", data, tmp_path, kl_warmup=0.4, kl_schedule=shape)
        assert weight(0) / whole == pytest.approx(first, abs=1e-4)
        assert weight(round(0.4 * steps) // 2) / whole == pytest.approx(0.5)


def test_a_schedule_of_no_steps_is_refused(data, tmp_path):
    with pytest.raises(OptionError, match="kl_steps"):
        TASKS["graph"].config(data, tmp_path, kl_steps=0)
    for shape in ("linear", "sigmoid"):
        with pytest.raises(ValueError, match="steps is 0, expected a positive number of training steps"):
            rising(shape, 0)
    with pytest.raises(ValueError, match="shape is 'cosine', expected linear or sigmoid"):
        rising("cosine", 10)
