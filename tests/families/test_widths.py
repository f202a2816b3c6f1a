"""Widths that are networks, and priors around the scores: closed forms, layouts, layers, and bad values."""

import math

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch import nn

from pyro_attention import (
    AttentionCall,
    AttentionGuide,
    Categorical,
    Dense,
    EvidenceELBO,
    FixedGammaPrior,
    FromPrior,
    Gamma,
    GraphAttention,
    LatentAttention,
    LogNormal,
    MultiheadAttention,
    ScorePrior,
    Weibull,
    WidthNetwork,
)
from pyro_attention.families.gaussian import Gaussian
from pyro_attention.families.lognormal import FixedLogNormalPrior
from tests.helpers import (
    DenseForm,
    EdgesForm,
    Problem,
    Regression,
    assert_mean,
    closed_form,
    draw,
    flat,
    gradients,
    posterior_and_prior,
)

FAMILIES = {"lognormal": LogNormal, "weibull": Weibull, "gamma": Gamma}
PRIORS = {"gamma": FixedGammaPrior, "lognormal": lambda: FixedLogNormalPrior(-1.0, 0.8)}
FORMS = [DenseForm(), EdgesForm()]
every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
every_input = pytest.mark.parametrize("of", ["queries", "keys", "scores"])


def varied(of, *, dim=3, **options):
    """A network whose widths differ from input to input."""
    torch.manual_seed(1)
    network = WidthNetwork(1 if of == "scores" else dim, of=of, initial=1.5, **options)
    nn.init.normal_(network.weight)
    return network


@every_form
@every_input
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_kl(family, prior, of, form):
    """It is the mean of log q - log p, with widths that differ from head to head, and trains the network."""
    problem, model = Problem.random((2,)), Regression(form, PRIORS[prior](), None)
    posterior = FAMILIES[family](varied(of, heads=2, hidden_dim=4))
    loss, kl = closed_form(model, posterior, problem)
    assert all((each != 0).any() for each in gradients(loss, *posterior.parameters()))
    with torch.no_grad():
        q, p = posterior_and_prior(AttentionGuide(model, posterior), problem)
        values = q.rsample((4000,))
        assert_mean((q.log_prob(values) - p.log_prob(values)).sum(-1), kl)


@every_form
@every_input
@pytest.mark.parametrize("family", FAMILIES)
def test_starts_as_the_number(family, of, form):
    """In both layouts a network that has learned nothing is its initial number."""
    problem, model = Problem.random(), Regression(form, FixedGammaPrior(), None)
    network = WidthNetwork(1 if of == "scores" else 3, of=of, initial=2.5, hidden_dim=4)
    found = [closed_form(model, FAMILIES[family](value), problem)[0] for value in (network, 2.5)]
    torch.testing.assert_close(*found)


@every_input
def test_layouts_agree(of):
    problem, moments = Problem.random(), []
    for form in FORMS:
        model, network = Regression(form, FixedGammaPrior(), None), varied(of, heads=2)
        moments.append(closed_form(model, Weibull(network), problem)[1])
    torch.testing.assert_close(*moments)


def test_queries_in_plates():
    """A width for each query, ``[..., H, 1]``."""
    network, queries = varied("queries", heads=2), torch.randn(5, 4, 2, 3)
    attention = LatentAttention("attention", FixedGammaPrior())
    call = attention.make_call(torch.randn(5, 4, 2, 6), layout=Dense(event_dim=2), queries=queries)
    scale = LogNormal(network).posterior(call, attention.prior(call)).scale
    assert scale.shape == (5, 4, 2, 1)
    expected = 1e-3 + nn.functional.softplus(queries[3, 1, 1] @ network.weight[1] + network.bias[1])
    torch.testing.assert_close(scale[3, 1, 1], expected)


# A prior around the scores


@pytest.mark.filterwarnings("ignore::pyro_attention.objectives.learned_widths.WidthWarning")
@every_form
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_of_the_prior_are_those_of_the_family(family, form):
    """The guide that keeps the prior draws what the family's own posterior draws, and has no KL."""
    problem, own = Problem.random(), FAMILIES[family](varied("queries"))
    around, fixed = (Regression(form, prior, None) for prior in (ScorePrior(own), FixedGammaPrior()))
    values = [draw(*each, problem) for each in ((around, FromPrior()), (fixed, own))]
    torch.testing.assert_close(values[0]["weights"], values[1]["weights"])
    assert closed_form(around, FromPrior(), problem)[1] == 0
    kl = closed_form(around, own, problem, kl="sampled")[1]  # the prior itself, as a posterior
    torch.testing.assert_close(kl, torch.zeros(()), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", [LogNormal(0.3), Weibull(5.0)], ids=repr)
def test_a_gamma_prior_around_low_scores_has_the_kl_of_high_ones(family):
    """The rate overflows alone, its product with the mean weight does not."""
    attention = LatentAttention("attention", ScorePrior(Gamma(5.0)), normalize_scores=False)
    kls = []
    for shift in (0.0, -120.0):
        scores = (torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0)) + shift).requires_grad_()
        call = attention.make_call(scores, layout=Dense(event_dim=2))
        prior = attention.prior(call)
        kls.append(torch.distributions.kl_divergence(family.posterior(call, prior), prior))
        (slopes,) = torch.autograd.grad(kls[-1].sum(), scores)
        torch.testing.assert_close(slopes, torch.zeros_like(scores), atol=1e-4, rtol=0)
    torch.testing.assert_close(*kls, atol=1e-4, rtol=1e-4)


# Layers


@pytest.mark.parametrize("of", ["queries", "keys"])
@pytest.mark.parametrize("kind", ["multihead", "graph"])
def test_layers_hand_on_queries_and_keys(kind, of):
    """The evidence of a layer trains its width."""
    prior, edges = ScorePrior(LogNormal(varied(of, dim=2, heads=2))), torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, 0, 0]])
    layer = MultiheadAttention(4, 2, prior=prior) if kind == "multihead" else GraphAttention(4, 2, heads=2, prior=prior)

    def model(x):
        with pyro.plate("data", len(x), dim=-1):
            context = layer(x, x, x)[0] if kind == "multihead" else layer(x, edges)
            pyro.sample("y", Normal(context.sum((-1, -2)), 1.0), obs=torch.zeros(len(x)))

    guide = AttentionGuide(model, FromPrior())
    loss = EvidenceELBO(4, max_plate_nesting=1).differentiable_loss(model, guide, torch.randn(2, 3, 4))
    assert (flat(loss, list(prior.parameters())) != 0).all()


# Mistakes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: WidthNetwork(2)(_call()),
            "site 'a': WidthNetwork is of the queries, which the layer does not pass on",
        ),
        (lambda: WidthNetwork(2, 2, of="keys")(_call(torch.ones(1, 4, 3))), "keys have 1 heads of width 3"),
        (lambda: WidthNetwork(0), "dim is 0, expected an integer of at least 1"),
        (lambda: WidthNetwork(2, heads=0), "heads is 0, expected an integer of at least 1"),
        (lambda: WidthNetwork(2, hidden_dim=0), "hidden_dim is 0, expected an integer of at least 1"),
        (lambda: WidthNetwork(2, initial=1e-4), "initial is 0.0001, expected more than minimum=0.001"),
        (lambda: ScorePrior(Categorical()), "family is Categorical.*, expected one of positive weights with a width"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _call(keys=None):
    return AttentionCall(scores=torch.zeros(1, 2, 4), keys=keys, layout=Dense(), site="a")


class Returns(nn.Module):
    """A network of widths that gives always the same."""

    def __init__(self, value):
        super().__init__()
        self.given = value

    def forward(self, call):
        return self.given


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            torch.tensor([[[1.0], [0.0]]]),
            "site 'attention': concentration of Returns has an entry 0.0, expected positive",
        ),
        (torch.tensor(-1.0), "has an entry -1.0"),
        (torch.tensor(math.inf), "has an entry inf"),
        (torch.tensor(math.nan), "has an entry nan"),
        (torch.ones(1, 3, 1), r"has shape \(1, 3, 1\), expected a shape that broadcasts to the scores"),
    ],
)
def test_bad_widths(value, message):
    attention = LatentAttention("attention", ScorePrior(Weibull(Returns(value))))
    with pytest.raises(ValueError, match=message):
        attention(torch.zeros(1, 2, 4), torch.zeros(1, 4, 3))


def test_the_state_of_the_network_of_another_family_is_refused():
    """A width that is a scale is no concentration; a state from before its name held the family is read."""
    families = [family(WidthNetwork(4, hidden_dim=3)) for family in (LogNormal, Weibull, Gamma, Gaussian)]
    for family in families:
        nn.init.normal_(family.network.weight)
        state = family.state_dict()
        for other in families:
            fresh = type(other)(WidthNetwork(4, hidden_dim=3))
            if type(other) is type(family):
                fresh.load_state_dict(state)
                assert fresh.network.weight.equal(family.network.weight)
            else:
                with pytest.raises(RuntimeError, match="Missing key"):
                    fresh.load_state_dict(state)
        prior = nn.ModuleList([type(family)(WidthNetwork(4, hidden_dim=3))])
        prior.load_state_dict({f"0.network.{name}": value for name, value in family.network.state_dict().items()})
        assert prior[0].network.weight.equal(family.network.weight)
