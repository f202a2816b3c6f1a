"""check_model: the table of attention sites, and every problem it finds."""

import re

import pyro
import pytest
import torch
from pyro.distributions import Normal
from pyro.infer import SVI
from pyro.optim import Adam

from models.gat import GAT
from models.nmt import Translation, TranslationSizes
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Categorical,
    FixedGammaPrior,
    LogNormal,
    Marginal,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
)
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences

LIGHT = AttentionELBO(kl_weight=1e-4)


@pytest.fixture
def data():
    return Sequences.random()


def test_dense_table(data):
    """Its numbers are those of the objective, and nothing is updated."""
    model, arguments = SelfAttention(), (data.x, data.y, data.padding)
    guide, elbo = AttentionGuide(model, {"layers.0": Weibull(), "*": LogNormal()}), AttentionELBO(kl_weight=1e-4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(0)
    report = check_model(model, guide, *arguments, elbo=LIGHT)
    assert report.ok
    assert report.problems == ()
    assert [site.name for site in report.sites] == ["layers.0", "layers.1"]
    assert [site.family for site in report.sites] == ["WeibullWeights", "LogNormalWeights"]
    torch.manual_seed(0)
    assert report.loss == pytest.approx(elbo.differentiable_loss(model, guide, *arguments).item())
    for site in report.sites:
        assert (site.prior, site.batch_shape, site.event_shape) == ("GammaWeights", (6,), (2, 5, 5))
        assert site.masked == pytest.approx(data.padding.float().mean().item())
        assert site.kl == pytest.approx(elbo.kl_record[site.name].item())
    assert 0 < data.padding.float().mean() < 0.5
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    lines = str(report).splitlines()
    assert lines[0].split() == ["site", "family", "prior", "batch", "event", "masked", "KL"]
    assert lines[1].startswith("layers.0  WeibullWeights    GammaWeights  (6,)   (2, 5, 5)")
    assert lines[4:] == ["no problems found"]
    report = check_model(model, AttentionGuide(model, Soft()), *arguments)
    assert report.ok
    assert [site.kl for site in report.sites] == [None, None]


def test_graph_table():
    data, model = GraphData.random(), GAT(5, 3, hidden=4, heads=2, output_heads=3)
    report = check_model(model, AttentionGuide(model, Weibull()), *data.arguments, elbo=LIGHT)
    assert report.ok
    edges = data.edge_index.size(1) + 7
    assert [site.event_shape for site in report.sites] == [(edges, 2), (edges, 3)]
    loops = (data.edge_index[0] == data.edge_index[1]).sum().item()
    assert [site.masked for site in report.sites] == pytest.approx([loops / edges] * 2)


def problems(report, message):
    """Assert that the problems are reported, and shown in the table."""
    assert not report.ok
    assert any(message in problem for problem in report.problems), report.problems
    assert f"problem: {report.problems[0].splitlines()[0].rstrip()}" in str(report)


layer = MultiheadAttention(4, 2)


def deterministic(x, *_):
    with pyro.plate("batch", x.size(0)):
        pyro.deterministic("context", layer(x, x, x)[0], event_dim=2)


@pytest.mark.parametrize(
    ("model", "families", "message", "sites"),
    [
        (deterministic, Weibull(), "the model observes nothing: no sample site has obs=", 1),
        (SelfAttention(), {"layers.0": Weibull()}, "attention site 'layers.1' matches none of the patterns", 1),
        (
            SelfAttention().eval().requires_grad_(False),
            Weibull(),
            "nothing to train: the loss depends on no parameter",
            2,
        ),
    ],
    ids=["no observation", "error of the guide", "nothing to train"],
)
def test_what_is_missing_is_reported(data, model, families, message, sites):
    report = check_model(model, AttentionGuide(model, families), data.x, data.y)
    problems(report, message)
    assert len(report.sites) == sites


@pytest.mark.parametrize("svi", [True, False])
def test_unregistered_parameters(data, svi):
    layer = MultiheadAttention(4, 2)

    def model(x, y, *, registered):
        if registered:
            pyro.module("layer", layer)
        with pyro.plate("batch", x.size(0)):
            pyro.sample("y", Normal(layer(x, x, x)[0].sum((-1, -2)), 1.0), obs=y)

    guide = AttentionGuide(model, Weibull())
    assert check_model(model, guide, data.x, data.y, elbo=LIGHT, registered=True).ok
    problems(check_model(model, guide, data.x, data.y, elbo=LIGHT, registered=False), "11 of 11 parameters")
    train = SVI(model, guide, Adam({"lr": 0.01}), LIGHT).step if svi else LIGHT(model, guide)
    with pytest.raises(ValueError, match="11 of 11 parameters"):  # what the training would say
        train(data.x, data.y, registered=False)


def test_a_kl_that_outweighs_the_data(data):
    """Its sentence names a weight under which it does not."""
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())
    report = check_model(model, guide, data.x, data.y)
    problems(report, "the KL outweighs the data")
    (weight,) = re.findall(r"kl_weight=([\d.e-]+)", report.problems[0])
    assert check_model(model, guide, data.x, data.y, elbo=AttentionELBO(kl_weight=float(weight))).ok
    problems(check_model(SelfAttention(), guide, data.x, data.y), "the model is not that of the guide")


@pytest.mark.parametrize(
    ("change", "message", "sites"),
    [
        (lambda x, y: (x[..., 1:], y), "ValueError: query has shape", []),
        (lambda x, y: (x, y[1:]), "", ["layers.0", "layers.1"]),
    ],
    ids=["width", "target"],
)
def test_errors_are_reported_not_raised(data, change, message, sites):
    model = SelfAttention()
    report = check_model(model, AttentionGuide(model, Weibull()), *change(data.x, data.y))
    problems(report, message)
    assert report.loss is None
    assert "loss could not be computed" in str(report)
    assert [site.name for site in report.sites] == sites  # those seen before the error


def test_everything_masked(data):
    model = SelfAttention()
    report = check_model(model, AttentionGuide(model, Weibull()), data.x, data.y, torch.ones_like(data.padding))
    problems(report, "site 'layers.0': every entry is masked; in masks True means may attend")
    assert [(site.masked, site.kl) for site in report.sites] == [(1, 0)] * 2


@pytest.mark.filterwarnings("ignore:Encountered")
def test_infinite_loss():
    model = FreeScores(FixedGammaPrior(), normalize_scores=False)
    torch.nn.init.constant_(model.scores, 200.0)  # E[S] = e^200 is infinite in float32
    guide, y = AttentionGuide(model, Weibull()), torch.zeros(1, 3, 4)
    problems(check_model(model, guide, y), "'attention': inf")
    with pyro.validation_enabled(False):
        report = check_model(model, guide, y)
    problems(report, "the loss is inf; normalize the scores")


@pytest.mark.filterwarnings("ignore:.*not guide")
@pytest.mark.parametrize("family", [Marginal(), Categorical(enumerate=False), Soft()], ids=str)
def test_alignments(family):
    model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
    source, target = torch.randint(10, (2, 5)), torch.randint(12, (2, 4))
    source_mask, target_mask = torch.arange(5) < torch.tensor([[5], [3]]), torch.ones(2, 4, dtype=torch.bool)
    arguments, guide = (source, source_mask, target, target, target_mask), AttentionGuide(model, family)
    report = check_model(model, guide, *arguments)
    assert report.ok, report.problems
    (site,) = report.sites
    assert site.prior == ("AlignmentWeights" if isinstance(family, Soft) else "CategoricalAlignment")
    assert site.masked == pytest.approx(0.2)
    if not isinstance(family, Soft):
        assert "AlignmentELBO" in check_model(model, guide, *arguments, elbo=AttentionELBO()).problems[0]
