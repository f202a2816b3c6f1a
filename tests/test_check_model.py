"""check_model: the table of attention sites, and every problem it finds."""

import re
from contextlib import nullcontext

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
    Dense,
    FixedGammaPrior,
    LatentAttention,
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
    model = SelfAttention()
    guide = AttentionGuide(model, {"layers.0": Weibull(), "*": LogNormal()})
    report = check_model(model, guide, data.x, data.y, data.padding, elbo=LIGHT, svi=True)
    assert report.ok
    assert report.problems == ()
    assert [site.name for site in report.sites] == ["layers.0", "layers.1"]
    assert [site.family for site in report.sites] == ["WeibullWeights", "LogNormalWeights"]
    for site in report.sites:
        assert (site.prior, site.batch_shape, site.event_shape) == ("GammaWeights", (6,), (2, 5, 5))
        assert site.masked == pytest.approx(data.padding.float().mean().item())
        assert site.kl > 0
        assert site.gradient_norm > 0
    assert 0 < data.padding.float().mean() < 1


def test_graph_table():
    data = GraphData.random()
    model = GAT(5, 3, hidden=4, heads=2, output_heads=3)
    report = check_model(model, AttentionGuide(model, Weibull()), *data.arguments, elbo=LIGHT, svi=True)
    assert report.ok
    edges = data.edge_index.size(1) + 7
    assert [site.event_shape for site in report.sites] == [(edges, 2), (edges, 3)]
    loops = (data.edge_index[0] == data.edge_index[1]).sum().item()
    assert [site.masked for site in report.sites] == pytest.approx([loops / edges] * 2)
    assert [site.batch_shape for site in report.sites] == [(), ()]


@pytest.mark.parametrize("options", [None, {"kl_weight": 0.3}, {"kl_weight": 0}, {"num_particles": 3}], ids=str)
def test_numbers_are_those_of_the_objective(data, options):
    elbo = None if options is None else AttentionELBO(**options)
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())
    torch.manual_seed(0)
    report = check_model(model, guide, data.x, data.y, data.padding, elbo=elbo)
    elbo = AttentionELBO() if elbo is None else elbo
    torch.manual_seed(0)
    loss = elbo.differentiable_loss(model, guide, data.x, data.y, data.padding)
    assert report.loss == pytest.approx(loss.item())
    for site in report.sites:
        assert site.kl == (pytest.approx(elbo.kl_record[site.name].item()) if elbo.kl_weight else None)


def test_gradient_norm():
    """The scores of FreeScores are parameters: their gradient can be had directly."""
    model, y = FreeScores(FixedGammaPrior(), normalize_scores=False), torch.zeros(1, 3, 4)
    guide = AttentionGuide(model, Weibull())
    torch.manual_seed(0)
    (site,) = check_model(model, guide, y).sites
    torch.manual_seed(0)
    AttentionELBO().differentiable_loss(model, guide, y).backward()
    assert site.gradient_norm == pytest.approx(model.scores.grad.norm().item(), rel=1e-5)


@pytest.mark.parametrize("family", [Soft(), Weibull()], ids=str)
def test_nothing_is_updated_and_soft_attention_has_no_kl(family, data):
    model = SelfAttention()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = check_model(model, AttentionGuide(model, family), data.x, data.y, elbo=LIGHT, svi=True)
    assert report.ok
    assert [site.kl is None for site in report.sites] == [isinstance(family, Soft)] * 2
    assert ("  -  " in str(report)) == isinstance(family, Soft)
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_printed_table(data):
    model = SelfAttention()
    report = check_model(model, AttentionGuide(model, Weibull()), data.x, data.y, data.padding, elbo=LIGHT)
    lines = str(report).splitlines()
    assert lines[0].split() == ["site", "family", "prior", "batch", "event", "masked", "KL", "|gradient|"]
    assert lines[1].startswith("layers.0  WeibullWeights  GammaWeights  (6,)   (2, 5, 5)")
    assert lines[3].startswith("loss ")
    assert lines[4:] == ["no problems found"]


def problems(report, message):
    """Assert that the problems are reported, and shown in the table."""
    assert not report.ok
    assert any(message in problem for problem in report.problems), report.problems
    assert f"problem: {report.problems[0].splitlines()[0].rstrip()}" in str(report)
    return True


layer = MultiheadAttention(4, 2)
plain = LatentAttention("attention", FixedGammaPrior())


def deterministic(x):
    with pyro.plate("batch", x.size(0)):
        pyro.deterministic("context", layer(x, x, x)[0], event_dim=2)


def twice(x):
    plain(x[:1], x[:1].mT, layout=Dense())
    plain(x[:1], x[:1].mT)


@pytest.mark.parametrize(
    ("model", "families", "message"),
    [
        (SelfAttention(), Weibull(), "the model observes nothing: no sample site has obs="),
        (deterministic, Weibull(), "the model observes nothing"),
        (SelfAttention(), {"layers.0": Weibull()}, "attention site 'layers.1' matches none of the patterns"),
        (twice, Weibull(), "attention"),
    ],
    ids=["no observation", "deterministic site", "error of the guide", "two sites of one name"],
)
def test_what_is_missing_is_reported(data, model, families, message):
    assert problems(check_model(model, AttentionGuide(model, families), data.x), message)


def test_nothing_to_train(data):
    model = SelfAttention().eval().requires_grad_(False)
    report = check_model(model, AttentionGuide(model, Weibull()), data.x, data.y)
    assert problems(report, "nothing to train: the loss depends on no parameter")
    assert [site.gradient_norm for site in report.sites] == [None, None]
    assert report.loss > 0


@pytest.mark.parametrize("svi", [True, False])
@pytest.mark.parametrize("registered", [True, False])
def test_unregistered_parameters(data, svi, registered):
    layer = MultiheadAttention(4, 2)

    def model(x, y):
        if registered:
            pyro.module("layer", layer)
        with pyro.plate("batch", x.size(0)):
            pyro.sample("y", Normal(layer(x, x, x)[0].sum((-1, -2)), 1.0), obs=y)

    guide = AttentionGuide(model, Weibull())
    report = check_model(model, guide, data.x, data.y, elbo=LIGHT, svi=svi)
    if registered:
        assert report.ok
        return
    assert problems(report, "11 of 11 parameters")
    train = SVI(model, guide, Adam({"lr": 0.01}), LIGHT).step if svi else LIGHT(model, guide)
    with pytest.raises(ValueError, match="11 of 11 parameters"):  # what the training would say
        train(data.x, data.y)


def test_the_guide_of_another_model(data):
    model, other = SelfAttention(), SelfAttention()
    report = check_model(model, AttentionGuide(other, Weibull()), data.x, data.y, elbo=LIGHT)
    assert problems(report, "the model is not that of the guide")


def test_a_kl_that_outweighs_the_data(data):
    """Its sentence names a weight under which it does not."""
    model = SelfAttention()
    guide = AttentionGuide(model, Weibull())
    report = check_model(model, guide, data.x, data.y)
    assert problems(report, "the KL outweighs the data")
    (weight,) = re.findall(r"kl_weight=([\d.e-]+)", report.problems[0])
    assert check_model(model, guide, data.x, data.y, elbo=AttentionELBO(kl_weight=float(weight))).ok


@pytest.mark.parametrize(
    ("change", "message", "sites"),
    [
        (lambda x, y, padding: (x[..., 1:], y, padding), "ValueError: query has shape", []),
        (lambda x, y, padding: (x, y, padding.int()), "TypeError: key_padding_mask is of type torch.int32", []),
        (lambda x, y, padding: (x * float("nan"), y, padding), "scores are NaN or infinite", []),
        (lambda x, y, padding: (x, y[1:], padding), "", ["layers.0", "layers.1"]),
    ],
    ids=["width", "mask", "nan", "target"],
)
def test_errors_are_reported_not_raised(data, change, message, sites):
    model = SelfAttention()
    report = check_model(model, AttentionGuide(model, Weibull()), *change(data.x, data.y, data.padding))
    assert problems(report, message)
    assert report.loss is None
    assert "loss could not be computed" in str(report)
    assert [site.name for site in report.sites] == sites  # those seen before the error
    assert all(site.gradient_norm is None for site in report.sites)


def test_everything_masked(data):
    model = SelfAttention()
    report = check_model(model, AttentionGuide(model, Weibull()), data.x, data.y, torch.ones_like(data.padding))
    assert problems(report, "site 'layers.0': every entry is masked; in masks True means may attend")
    assert len(report.problems) == 2
    assert [site.masked for site in report.sites] == [1, 1]
    assert [site.kl for site in report.sites] == [0, 0]


@pytest.mark.filterwarnings("ignore:Encountered")
def test_infinite_loss():
    model = FreeScores(FixedGammaPrior(), normalize_scores=False)
    torch.nn.init.constant_(model.scores, 200.0)  # E[S] = e^200 is infinite in float32
    guide, y = AttentionGuide(model, Weibull()), torch.zeros(1, 3, 4)
    problems(check_model(model, guide, y), "the KL of 'attention' overflows")
    with pyro.validation_enabled(False):
        report = check_model(model, guide, y)
    problems(report, "the loss is inf; normalise the scores")
    assert any("site 'attention': the gradient of its scores is" in problem for problem in report.problems)


@pytest.mark.parametrize("family", [Marginal(), Categorical(), Soft()])
def test_alignments(family):
    model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
    source, target = torch.randint(10, (2, 5)), torch.randint(12, (2, 4))
    source_mask, target_mask = torch.arange(5) < torch.tensor([[5], [3]]), torch.ones(2, 4, dtype=torch.bool)
    report = check_model(model, AttentionGuide(model, family), source, source_mask, target, target, target_mask)
    assert report.ok, report.problems
    (site,) = report.sites
    assert site.prior == ("AlignmentWeights" if isinstance(family, Soft) else "CategoricalAlignment")
    assert site.masked == pytest.approx(0.2)


@pytest.mark.parametrize("family", [Marginal(), Categorical(enumerate=False)], ids=str)
def test_an_alignment_needs_its_own_objective(family):
    model = Translation(10, 12, sizes=TranslationSizes(8, 8, 8, 8))
    words = torch.randint(10, (2, 4))
    arguments = words, words >= 0, words, words, words >= 0
    with pytest.warns(UserWarning, match="not guide") if family.infer else nullcontext():
        report = check_model(model, AttentionGuide(model, family), *arguments, elbo=AttentionELBO())
    assert "AlignmentELBO" in report.problems[0]
