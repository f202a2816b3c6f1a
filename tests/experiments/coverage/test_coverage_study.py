"""Problems whose weights are known: the truth covers, an ensemble and a Laplace approximation widen, runs resume."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.coverage.config import CoverageConfig
from experiments.coverage.problems import PROBLEMS
from experiments.coverage.studies import STUDIES
from experiments.coverage.task import CoverageTask, build, draws, generate, scores, true_draws
from experiments.folder import open_run
from experiments.study import Finished
from pyro_attention import EvidenceELBO

TINY = {"items": 200, "max_epochs": 1, "num_samples": 200, "draws": 4, "progress": False}


@pytest.mark.parametrize("toy", ["noise", "ignorance", *PROBLEMS])
def test_who_knows_the_truth_covers(toy):
    test = generate(CoverageConfig(toy=toy, items=10))["test"]
    weights, log_likelihood = true_draws(toy, test, 400)
    found = scores("truth", test, weights, log_likelihood)
    if toy != "ignorance":
        assert all(0.86 < found[f"truth_coverage_{part}"] < 0.92 for part in ("low", "middle", "high"))
        assert all(0.98 < found[f"truth_ratio_{part}"] < 1.02 for part in ("low", "middle", "high"))
        assert found["truth_error_given"] < found["truth_error"]
    else:  # the entropy of the noise
        assert found["truth_nll"] == pytest.approx(1.5 * (1 + math.log(2 * math.pi * 0.25)), abs=0.1)


@pytest.mark.parametrize("family", ["weibull", "lognormal"])
def test_the_spread_is_that_of_log_weights(family):
    config = CoverageConfig(objective="evidence", family=family, width="fixed", spread=0.3, items=10)
    weights, log_likelihood = draws(build(config), generate(config)["val"], 500)
    assert weights.shape == (500, 2000, 6)
    assert log_likelihood.shape == (500, 2000)
    # of a difference of two
    assert (weights[..., 0] / weights[..., 1]).log().std(0).mean().item() == pytest.approx(0.3 * 2**0.5, rel=0.02)


@pytest.mark.filterwarnings(
    "ignore:the KL outweighs", "ignore:the Hessian", "ignore:.*draws are too few"
)  # hardly anything is trained
@pytest.mark.parametrize(
    "options", [{"objective": "evidence", "toy": "multinomial", "check": True}, {"objective": "soft", "members": 2}]
)
def test_a_training_has_intervals_and_is_read_again(options, tmp_path):
    config = CoverageConfig(out=tmp_path, **TINY, **options)
    metrics = CoverageTask().run(config)
    assert metrics["mean_width"] > 0
    assert CoverageTask().run(replace(config, resume=True)) == pytest.approx(metrics)


README = Path(__file__).parents[3] / "README.md"


def test_the_readme_trains_with_the_settings_of_the_study():
    """So its sentence on intervals is about the code beside it."""
    defaults, elbo = CoverageConfig(), EvidenceELBO()
    assert (defaults.draws, defaults.correction) == (elbo.num_particles, elbo.correction)
    assert "loss = EvidenceELBO()(guide.model, guide)" in README.read_text()
    assert "noise = ScorePrior(LogNormal(scale=WidthNetwork(" in README.read_text()
    assert (defaults.objective, defaults.family, defaults.width) == ("evidence", "lognormal", "network")
    assert f"lr={defaults.learning_rate}" in README.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("toy", ["noise", "poisson"])
def test_intervals_of_the_readme_hold_in_every_third(toy, tmp_path):
    """One seed of the study; a third differs between seeds by .02."""
    options = {"num_samples": 400, "check": True, "progress": False}
    metrics = CoverageTask().run(CoverageConfig(toy=toy, seed=1, out=tmp_path, **options))
    assert all(0.85 < metrics[f"mean_coverage_{third}"] < 0.95 for third in ("low", "middle", "high"))
    assert metrics["gap_warned"] == 0


def test_members_of_an_ensemble_know_other_items(tmp_path):
    options = {**TINY, "batch_size": 200, "repeats": 200, "learning_rate": 0.05}
    config = CoverageConfig(toy="ignorance", noise="known", objective="soft", members=2, out=tmp_path, **options)
    assert CoverageTask().run(config)["mean_width"] > 0.01  # on the same items they end at the same optimum
    with open_run(tmp_path, replace(config, overwrite=True)):  # leaves no member for a later --resume
        pass
    assert {path.name for path in tmp_path.rglob("*")} == {".lock", "config.yaml"}


def test_what_is_said_above_intervals_of_few_items(tmp_path):
    """Shares of the weights that intervals hold, of LaplacePosterior by level, of others the least and the most."""
    study = replace(STUDIES["coverage-ignorance"], levels={"30": {"items": 30}, "100": {"items": 100}}, seeds=1)
    configs = {(row, level, 0): None for row in study.rows for level in study.levels}
    names = {"mean": 0.1, "dropout": 0.3, "scaled": 0.2, "laplace": 0.8}
    metrics = {
        key: {f"{kind}_coverage": share + 0.1 * (key[1] == "100") for kind, share in names.items()} for key in configs
    }
    finished = Finished(study, study.name, tmp_path, None, configs, metrics)
    (part,) = study.parts[0](finished)
    assert "these hold the true weight: 80% from 30 items, 90% from 100 items" in part.text
    assert "MC dropout: 30% to 40%" in part.text
    assert "temperature" not in part.text
