"""FromPrior: the objective under which a width is learned, and priors from which queries would not train."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    AttentionCall,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FromPrior,
    Gamma,
    LatentAttention,
    LogNormal,
    Marginal,
    ScorePrior,
    Soft,
    Weibull,
    WidthNetwork,
    check_model,
    elbo_for,
)
from pyro_attention.families.base import PRIORS
from pyro_attention.objectives.learned_widths import WidthWarning, collapsing_widths
from tests.toy_models import SelfAttention, Sequences


@pytest.fixture
def data():
    data = Sequences.random()
    return data.x, data.y, data.padding


def around(family):
    return lambda *_: ScorePrior(family)


WIDTHS = {
    "lognormal": lambda: LogNormal(0.5, learnable=True),
    "weibull": lambda: Weibull(5.0, learnable=True),
    "gamma": lambda: Gamma(5.0, learnable=True),
    "network": lambda: LogNormal(WidthNetwork(2)),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_a_learned_width_outside_of_the_evidence(name, data):
    """A step of SVI, of the loss as a module, and check_model all say that it collapses; the evidence does not."""
    model = SelfAttention(layers=1, prior=around(WIDTHS[name]()))
    guide = AttentionGuide(model, FromPrior())
    message = r"FromPrior\(\) at 'layers.0' with a width that is trained: under AttentionELBO it goes to zero"
    for train in (
        SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), AttentionELBO()).step,
        AttentionELBO()(model, guide),
    ):
        with pytest.warns(WidthWarning, match=message):
            train(*data)
    assert any(
        "under AttentionELBO it goes to zero" in p
        for p in check_model(model, guide, *data, elbo=AttentionELBO()).problems
    )
    assert check_model(model, guide, *data).problems == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        EvidenceELBO(4)(model, guide)(*data)


def test_a_width_collapses_under_an_objective_of_pyro(data):
    """They maximize a mean over draws, too, and do not say so."""
    guide = AttentionGuide(SelfAttention(layers=1, prior=around(WIDTHS["network"]())), FromPrior())
    trace = poutine.trace(guide).get_trace(*data)
    sites = [site for site in trace.nodes.values() if site["type"] == "sample"]
    assert "under Trace_ELBO it goes to zero" in (collapsing_widths(Trace_ELBO(), sites) or "")
    assert collapsing_widths(EvidenceELBO(4), sites) is None


def test_an_alignment_elbo_warns_too():
    class Both(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.width = ScorePrior(LogNormal(0.5, learnable=True))
            self.drawn = LatentAttention("drawn", self.width)
            self.summed = LatentAttention("summed", AlignmentPrior())

        def forward(self, y):
            scores, values, layout = torch.randn(4, 1, 3), torch.randn(1, 3, 1), Dense(event_dim=2)
            with pyro.plate("queries", 4):
                mean = sum(part(scores, values, layout=layout).context for part in (self.drawn, self.summed))
                pyro.sample("y", dist.Normal(mean[..., 0, 0], 1.0), obs=y)

    model = Both()
    guide = AttentionGuide(model, {"drawn": FromPrior(), "summed": Marginal()})
    with pytest.warns(WidthWarning, match="under AlignmentELBO it goes to zero"):
        AlignmentELBO()(model, guide)(torch.zeros(4))


@pytest.mark.parametrize("width", [LogNormal(0.5), Weibull(5.0)], ids=str)
def test_a_fixed_width_is_a_choice(width, data):
    model = SelfAttention(layers=1, prior=around(width))
    AttentionELBO()(model, AttentionGuide(model, FromPrior()))(*data)


def test_an_evaluation_trains_nothing(data):
    model = SelfAttention(layers=1, prior=around(LogNormal(0.5, learnable=True)))
    AttentionELBO().loss(model, AttentionGuide(model, FromPrior()), *data)


@pytest.mark.parametrize(
    ("families", "objective"),
    [
        (FromPrior(), EvidenceELBO),
        ({"layers.0": Soft(), "layers.1": FromPrior()}, EvidenceELBO),
        ({"a": Marginal(), "*": FromPrior()}, AlignmentELBO),
        (Weibull(), AttentionELBO),
    ],
    ids=["alone", "above soft", "beside sums", "another"],
)
def test_the_objective_that_goes_with_it(families, objective):
    guide = AttentionGuide(SelfAttention(), families)
    assert type(elbo_for(guide)) is objective
    assert type(elbo_for(FromPrior(), num_particles=16)) is EvidenceELBO


def test_the_default_prior_is_refused(data):
    """From it no query would train: q_proj had no gradient."""
    model = SelfAttention(layers=1)
    message = (
        r"site 'layers.0': FromPrior draws the weights from a prior \(GammaWeights\) that does not read the scores"
    )
    for run in (EvidenceELBO(4)(model, AttentionGuide(model, FromPrior())), AttentionGuide(model, FromPrior())):
        with pytest.raises(ValueError, match=message):
            run(*data)
    (problem,) = check_model(model, AttentionGuide(model, FromPrior()), *data).problems
    assert "prior=ScorePrior(LogNormal(scale=0.5, learnable=True))" in problem
    remedy = SelfAttention(layers=1, prior=around(LogNormal(scale=0.5, learnable=True)))
    EvidenceELBO(4)(remedy, AttentionGuide(remedy, FromPrior()))(*data).backward()
    assert remedy.layers[0].q_proj.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", PRIORS)
def test_priors_say_whether_they_read_the_scores(name):
    """By the distribution: at other scores its log density at a value is another one, or it is the same."""
    prior = PRIORS[name](4) if name.endswith("contextual") else PRIORS[name]()
    keys, layout = torch.randn(1, 3, 4), Dense(event_dim=2)
    several = torch.zeros(2, 1, 3), torch.tensor([[[0.0, 1.0, -2.0]]] * 2)
    made = [prior(AttentionCall(scores=scores, keys=keys, layout=layout)) for scores in several]
    value = made[0].sample()
    changes = not torch.equal(*(distribution.log_prob(value) for distribution in made))
    assert changes is prior.reads_scores


@pytest.mark.filterwarnings("ignore:.*was not registered in the param store")
def test_parameters_that_a_loss_does_not_reach_are_named(data):
    """A layer whose scores are cut off from its queries, and a posterior without a prior term, whose prior is idle."""
    model = SelfAttention(layers=2)
    light = AttentionELBO(kl_weight=1e-4)
    assert check_model(model, AttentionGuide(model, Weibull()), *data, elbo=light).problems == ()
    assert check_model(model, AttentionGuide(model, Soft()), *data, elbo=light).problems == ()
    model.layers[1].q_proj.register_forward_hook(lambda *call: call[-1].detach())
    (problem,) = check_model(model, AttentionGuide(model, Weibull()), *data, elbo=light).problems
    assert (
        "does not depend on 2 parameters of attention layers (layers.1.q_proj.weight, layers.1.q_proj.bias)" in problem
    )
    model.layers[1].q_proj.requires_grad_(False)
    assert check_model(model, AttentionGuide(model, Weibull()), *data, elbo=light).problems == ()


def test_it_fits_alignments_that_are_drawn():
    assert FromPrior().kind is None
    layer = LatentAttention("z", AlignmentPrior())
    call = layer.make_call(torch.zeros(2, 1, 3), layout=Dense(event_dim=2))
    prior = layer.prior(call)
    assert FromPrior().posterior(call, prior) is prior
    assert type(elbo_for(Categorical())) is AlignmentELBO
