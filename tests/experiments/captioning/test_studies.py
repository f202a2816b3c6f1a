"""The noise of the gradients that the two estimators of the KL give."""

import math

import pytest
import torch

from experiments.captioning import studies
from experiments.captioning.batches import batches
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.studies import gradient_noise, loss_terms
from experiments.captioning.task import CaptionData, CaptioningTask, load_images
from pyro_attention import AttentionELBO
from tests.experiments.captioning.tiny_captions import small_scenes

# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


# noise of gradients


@pytest.fixture
def untrained(tmp_path):
    """A network, and a batch with padding."""

    def untrained(**options):
        config = CaptioningConfig(hidden=8, embedding=8, vocabulary=300, dropout=0.0, out=tmp_path, **options)
        images, task = load_images(config), CaptioningTask()
        trained = task.build(config, CaptionData(images, None), tmp_path)
        return trained, next(batches(trained, images["train"], references=1))

    return untrained


@pytest.mark.parametrize(("guide", "feed"), [("weibull", "expected"), ("gaussian", "expected"), ("weibull", "sampled")])
def test_the_terms_are_those_of_the_objective(guide, feed, untrained):
    trained, batch = untrained(guide=guide, input_feed=feed)
    assert not batch.target_mask.all()
    for kl in ("closed_form", "sampled"):
        elbo, size = AttentionELBO(kl_weight=0.3, kl=kl), trained.module.observations(batch)
        torch.manual_seed(0)
        loss = elbo.differentiable_loss(trained.model, trained.guide, *trained.module.arguments(batch)) / size
        torch.manual_seed(0)
        terms = loss_terms(trained, batch)
        found = terms["likelihood"] + 0.3 * terms[kl]
        torch.testing.assert_close(found, loss)
        parameters = list(trained.module.parameters())
        pairs = (torch.autograd.grad(value, parameters, allow_unused=True) for value in (found, loss))
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-3)
    # the closed form has no noise where scores do not depend on draws
    noise = gradient_noise(trained, batch, kl_weight=1.0, pairs=2)
    assert (noise["kl_variance_closed_form"].mean == 0) == (feed == "expected")
    assert noise["kl_variance_sampled"].mean > noise["kl_variance_closed_form"].mean


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

    monkeypatch.setattr(studies, "loss_terms", terms)
    found = gradient_noise(trained, batch, kl_weight=0.5, pairs=100)
    size = parameter.numel()
    expected = {
        "kl_variance_closed_form": 0,
        "kl_variance_sampled": 4 * size,
        "loss_variance_closed_form": 9 * size,
        "loss_variance_sampled": 13 * size,
        "loss_variance_ratio": 13 / 9,
        "gradient_square": 2.5**2 * size,
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert abs(found[name].mean - value) <= 4 * found[name].standard_error, name
    # half the squared length of 2 * size normals: a relative deviation of sqrt(2 / size) a pair
    error = found["loss_variance_closed_form"].standard_error
    assert error == pytest.approx(9 * size * math.sqrt(2 / size / 100), rel=0.25)
