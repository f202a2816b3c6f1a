"""The comparison of KL estimators: its measurement of gradients against known ones, whole runs, and bad input."""

import math

import pytest
import torch
from experiments.captioning.kl_estimators import CompareEstimators, run

import experiments.sequence.evaluation
from experiments.captioning import gradient_noise
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import batches
from experiments.captioning.model import build, load_vocabulary
from experiments.files import UserError
from experiments.harness.cli import run_script
from experiments.harness.results import read_metrics
from pyro_attention import AttentionELBO
from tests.experiments.captioning.tiny_captions import small_scenes

TINY = {"seeds": 1, "max_epochs": 1, "hidden": 8, "pairs": 2, "workers": 1, "progress": False}


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


def untrained(tmp_path, **options):
    """A network, and a batch with padding."""
    config = CaptioningConfig(hidden=8, embedding=8, vocabulary=300, dropout=0.0, out=tmp_path, **options)
    data = load_images(config)["train"]
    trained = build(config, load_vocabulary(config, tmp_path, data), data.regions.size(2))
    return trained, next(batches(trained, data, references=1))


def command_line(*arguments):
    return run_script(CompareEstimators, run, name="experiments.kl_estimators", arguments=arguments)


# the measurement


@pytest.mark.parametrize("guide", ["weibull", "lognormal", "gaussian"])
@pytest.mark.parametrize("feed", ["expected", "sampled"])
def test_the_terms_are_those_of_the_objective(guide, feed, tmp_path):
    trained, batch = untrained(tmp_path, guide=guide, input_feed=feed)
    assert not batch.target_mask.all()
    for kl in ("closed_form", "sampled"):
        elbo, size = AttentionELBO(kl_weight=0.3, kl=kl), trained.module.observations(batch)
        torch.manual_seed(0)
        loss = elbo.differentiable_loss(trained.model, trained.guide, *trained.module.arguments(batch)) / size
        torch.manual_seed(0)
        terms = gradient_noise.loss_terms(trained, batch)
        found = terms["likelihood"] + 0.3 * terms[kl]
        torch.testing.assert_close(found, loss)
        parameters = list(trained.module.parameters())
        pairs = (torch.autograd.grad(value, parameters, allow_unused=True) for value in (found, loss))
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-3)


def test_known_gradients(tmp_path, monkeypatch):
    """Of a likelihood whose gradient is 2 + 3 e, and of KLs whose gradients are 1 and 1 + 4 d, e and d normal."""
    trained, batch = untrained(tmp_path)
    parameter = next(p for p in trained.module.parameters() if p.numel() > 100)

    def terms(trained, batch):
        noise = torch.randn(2, *parameter.shape)
        return {
            "likelihood": (parameter * (2 + 3 * noise[0])).sum(),
            "closed_form": parameter.sum(),
            "sampled": (parameter * (1 + 4 * noise[1])).sum(),
        }

    monkeypatch.setattr(gradient_noise, "loss_terms", terms)
    found = gradient_noise.gradient_noise(trained, batch, kl_weight=0.5, pairs=200)
    size = parameter.numel()
    expected = {
        "kl_variance_closed_form": 0,
        "kl_variance_sampled": 4 * size,
        "loss_variance_closed_form": 9 * size,
        "loss_variance_sampled": 13 * size,
        "loss_variance_ratio": 13 / 9,
        "gradient_square": 2.5**2 * size,
    }
    assert found.keys() == gradient_noise.DEFINITIONS.keys()
    for name, value in expected.items():
        assert abs(found[name] - value) <= 4 * found[f"{name}_error"], name
        # half the squared length of 2 * size normals: a relative deviation of sqrt(2 / size) a pair
        if name.endswith("loss_variance_closed_form"):
            assert found[f"{name}_error"] == pytest.approx(value * math.sqrt(2 / size / 200), rel=0.2)


@pytest.mark.parametrize(("feed", "constant"), [("expected", True), ("sampled", False)])
def test_the_closed_form_has_no_noise_where_scores_do_not_depend_on_draws(feed, constant, tmp_path):
    trained, batch = untrained(tmp_path, input_feed=feed)
    found = gradient_noise.gradient_noise(trained, batch, kl_weight=1.0, pairs=2)
    assert (found["kl_variance_closed_form"] == 0) == constant
    assert found["kl_variance_sampled"] > found["kl_variance_closed_form"]


# whole runs


def test_end_to_end(tmp_path, capsys, monkeypatch):
    page = tmp_path / "RESULTS.md"
    options = TINY | {"guides": ("soft", "gaussian"), "out": tmp_path / "out", "results": page}
    metrics = run(CompareEstimators(**options))
    printed = capsys.readouterr().out
    for kl in ("closed_form", "sampled"):
        assert metrics[f"gaussian/{kl}/diverged"] == 0
        assert 1 < metrics[f"gaussian/{kl}/val_ppl"] < 400
    for point in ("untrained", "trained"):
        assert metrics[f"gaussian/{point}/kl_variance_sampled"] > 0
        assert metrics[f"gaussian/{point}/loss_variance_closed_form"] > 0
    assert "soft/closed_form/val_ppl" in metrics
    assert not any(name.startswith(("soft/sampled", "soft/trained")) for name in metrics)
    for text in ("| gaussian | closed form | 0 of 1 |", "| gaussian | sampled |", "| soft | none |", "--kl-weight 1.0"):
        assert text in page.read_text()
    assert "0 of 1" in printed
    assert read_metrics(tmp_path / "out") == pytest.approx(metrics, nan_ok=True)
    # nothing is trained again
    monkeypatch.setattr(experiments.sequence.evaluation, "fit_batches", None)
    assert run(CompareEstimators(**options, resume=True)) == pytest.approx(metrics, nan_ok=True)
    with pytest.raises(UserError, match="another configuration"):
        run(CompareEstimators(**(options | {"kl_weight": 0.1}), resume=True))


def test_diverged_trainings_are_counted(tmp_path):
    options = TINY | {"guides": ("weibull",), "out": tmp_path / "out", "results": tmp_path / "page.md"}
    metrics = run(CompareEstimators(**options, learning_rate=1e30))
    assert metrics == {"weibull/closed_form/diverged": 1, "weibull/sampled/diverged": 1}
    assert "| weibull | sampled | 1 of 1 | - | - | - |" in (tmp_path / "page.md").read_text()


def test_other_errors_are_not_counted(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError("No space left on device")

    monkeypatch.setattr("lightning.pytorch.Trainer.fit", full)
    with pytest.raises(UserError, match="No space left"):
        run(CompareEstimators(**TINY, out=tmp_path))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--guides", "[]"], "guides is empty, expected some of soft"),
        (["--guides", '["hard_enum"]'], "guides"),
        (["--kl-weight", "-1"], "kl-weight"),
        (["--pairs", "0"], "pairs"),
        (["--learning-rate", "fast"], "learning-rate"),
    ],
)
def test_bad_options(arguments, part, tmp_path, capsys):
    assert command_line(*arguments, "--out", str(tmp_path / "out")) in (1, 2)
    error = capsys.readouterr().err
    assert part in error
    assert error.strip().count("\n") == 0
