"""The noise of gradients under both estimators of the KL, against the objective and known gradients."""

import math

import pytest
import torch

from experiments.captioning import gradient_noise
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.data import load_images
from experiments.captioning.evaluation import batches
from experiments.captioning.model import build, load_vocabulary
from pyro_attention import AttentionELBO
from tests.experiments.captioning.tiny_captions import small_scenes


@pytest.fixture
def untrained(tmp_path, monkeypatch):
    """A network, and a batch with padding."""
    small_scenes(monkeypatch)

    def untrained(**options):
        config = CaptioningConfig(hidden=8, embedding=8, vocabulary=300, dropout=0.0, out=tmp_path, **options)
        data = load_images(config)["train"]
        trained = build(config, load_vocabulary(config, tmp_path, data), data.regions.size(2))
        return trained, next(batches(trained, data, references=1))

    return untrained


@pytest.mark.parametrize("guide", ["weibull", "lognormal", "gaussian"])
@pytest.mark.parametrize("feed", ["expected", "sampled"])
def test_the_terms_are_those_of_the_objective(guide, feed, untrained):
    trained, batch = untrained(guide=guide, input_feed=feed)
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


def test_known_gradients(untrained, monkeypatch):
    """Of a likelihood whose gradient is 2 + 3 e, and of KLs whose gradients are 1 and 1 + 4 d, e and d normal."""
    trained, batch = untrained()
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
    assert found.keys() == {name for value in expected for name in (value, f"{value}_error")}
    for name, value in expected.items():
        assert abs(found[name] - value) <= 4 * found[f"{name}_error"], name
        # half the squared length of 2 * size normals: a relative deviation of sqrt(2 / size) a pair
        if name.endswith("loss_variance_closed_form"):
            assert found[f"{name}_error"] == pytest.approx(value * math.sqrt(2 / size / 200), rel=0.2)


@pytest.mark.parametrize(("feed", "constant"), [("expected", True), ("sampled", False)])
def test_the_closed_form_has_no_noise_where_scores_do_not_depend_on_draws(feed, constant, untrained):
    trained, batch = untrained(input_feed=feed)
    found = gradient_noise.gradient_noise(trained, batch, kl_weight=1.0, pairs=2)
    assert (found["kl_variance_closed_form"] == 0) == constant
    assert found["kl_variance_sampled"] > found["kl_variance_closed_form"]
