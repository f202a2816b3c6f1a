"""Studies of captions: their declarations, what they publish on tiny data, and the noise of gradients."""

import math

import pytest
import torch

from experiments.captioning import studies, train
from experiments.captioning.config import CaptioningConfig
from experiments.captioning.evaluation import batches
from experiments.captioning.studies import gradient_noise, loss_terms
from experiments.captioning.train import CaptioningTask, load_images
from experiments.datasets.images import image_features
from experiments.files import read_yaml
from experiments.harness.options import StudyOptions
from experiments.report.report import read_results
from pyro_attention import AttentionELBO
from tests.experiments.captioning.tiny_captions import colour_encoder, small_scenes, write_flickr8k

TINY = {"max_epochs": 1, "hidden": 8, "embedding": 8, "vocabulary": 300, "num_samples": 2, "beam": 1, "batch_size": 8}

# an untrained network writes any character, and not every font has it
pytestmark = pytest.mark.filterwarnings("ignore:Glyph")


@pytest.fixture(autouse=True)
def few_scenes(monkeypatch):
    small_scenes(monkeypatch)


def tiny_study(folder, name, rows, **changes):
    """Train the rows of a study: the means of their metrics, and what it publishes."""
    means = studies.table(
        StudyOptions(
            name=name, rows=rows, seeds=1, workers=1, progress=False, data_root=folder, changes=TINY | changes,
            out=folder / "out", results=folder / "results",
        )
    )  # fmt: skip
    (path,) = (folder / "results").glob("*.json")
    return means, *read_results(path)


def test_the_table_of_photographs(tmp_path, monkeypatch):
    monkeypatch.setattr(image_features, "mobilenet_grid", colour_encoder)
    write_flickr8k(tmp_path)
    means, report, source = tiny_study(tmp_path, "flickr8k", ("soft", "WC"), size=64, precision="32")
    assert source.command.startswith("python -m experiments.captioning table flickr8k --seeds 1 --rows")
    soft, weibull = report.parts[0].rows
    assert weibull["CIDEr-D"].mean == pytest.approx(means["WC/test_cider_d"])
    assert (weibull["CIDEr-D: difference"].against, soft["paper"]) == ("soft", "32.2 / 54.7 / 104.0")
    parts = {part.title: part.rows for part in report.parts}
    (drawn,) = parts["5 captions of a photograph: posterior"]  # of random weights alone
    assert drawn["self-BLEU"].mean == pytest.approx(means["WC/test_self_bleu_posterior"])
    assert len(parts["5 captions of a photograph: temperature 0.5"]) == 2
    assert {"Besides", "Does doubt tell bad captions"} <= parts.keys()
    runs = tmp_path / "out" / "runs"
    saved, base = (read_yaml(runs / name / "config.yaml", "") for name in ("WC-0", "base-0"))
    assert (saved["init_from"], saved["learning_rate"], saved["kl_weight"]) == (str(runs / "base-0"), 1e-3, 0.01)
    assert (base["guide"], base["learning_rate"]) == ("soft", 2e-3)


def test_the_table_of_estimators(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "PAIRS", 2)
    _, report, _ = tiny_study(tmp_path, "kl-estimators", ("soft", "gaussian", "gaussian sampled"))
    trainings, noise = report.parts
    assert [row["compared with"] for row in trainings.rows] == ["", "soft", "gaussian"]
    assert [(row["guide"], row["parameters"]) for row in noise.rows] == [
        ("gaussian", "untrained"), ("gaussian", "trained"),
    ]  # fmt: skip
    runs = [tmp_path / "out" / "runs" / f"{name}-0" / "config.yaml" for name in ("gaussian", "gaussian-sampled")]
    assert [read_yaml(path, "")["kl"] for path in runs] == ["closed_form", "sampled"]


# noise of gradients


@pytest.fixture
def untrained(tmp_path):
    """A network, and a batch with padding."""

    def untrained(**options):
        config = CaptioningConfig(hidden=8, embedding=8, vocabulary=300, dropout=0.0, out=tmp_path, **options)
        images, task = load_images(config), CaptioningTask()
        trained = task.build(config, train.CaptionData(images, None), tmp_path)
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
