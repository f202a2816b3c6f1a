"""Draws of sites for Pyro: Predictive, condition and replay read them as the guide does; weights are refused there."""

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Normal
from pyro.infer import Predictive
from pyro.infer.autoguide import AutoNormalMessenger
from torch import nn

from pyro_attention import (
    AlignmentPrior,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    Dirichlet,
    EdgeList,
    FixedGammaPrior,
    FromPrior,
    LatentAttention,
    LogNormal,
    ScorePrior,
    Soft,
    Weibull,
    exact_alignments,
    importance_posterior,
    predict,
    sample_posterior,
    sample_sites,
)
from pyro_attention.alignments.exact import posterior_attention
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.families.gaussian import FixedGaussianPrior, Gaussian
from pyro_attention.integrations.arviz import attention_dims
from pyro_attention.over_queries import DoublyNormalized, Hybrid

SCORES, VALUES = torch.tensor([[[3.0, 0.0, -1.0]], [[0.0, 2.0, 1.0]]]), torch.tensor([[[[0.0], [1.0], [5.0]]]])


class Reader(nn.Module):
    """Each y is read at three keys, with little noise; ``shift`` is added to all."""

    def __init__(self, prior, *, shift=False, **options):
        super().__init__()
        self.attention, self.shift = LatentAttention("attention", prior, **options), shift

    def forward(self, y=None, layout=None):
        shift = pyro.sample("shift", Normal(0.0, 1.0)) if self.shift else 0.0
        with pyro.plate("items", len(SCORES)):
            out = self.attention(SCORES, VALUES.squeeze(1), layout=layout or Dense(event_dim=2))
            mean = out.context[..., 0, 0] + shift
            pyro.sample("y", Normal(mean, 1e-3), obs=y)
        return mean


PAIRS = {
    "weibull": (FixedGammaPrior(), Weibull(5.0)),
    "lognormal": (FixedGammaPrior(), LogNormal(0.5)),
    "soft": (FixedGammaPrior(), Soft()),
    "dirichlet": (DirichletPrior(), Dirichlet()),
    "alignment": (AlignmentPrior(), Categorical()),
    "gaussian": (FixedGaussianPrior(), Gaussian(0.5)),
}


WEIGHTS = {
    "alignment": lambda value: nn.functional.one_hot(value, 3).float().unsqueeze(-2),
    "gaussian": lambda value: value,
}


def guide_of(name, **options):
    prior, family = PAIRS[name]
    return AttentionGuide(Reader(prior, **options), family)


@pytest.mark.parametrize("chunk_size", [1, 7])
@pytest.mark.parametrize("name", PAIRS)
def test_pyros_tools_read_what_the_guide_has_drawn(name, chunk_size):
    """y of Predictive, of condition and of replay is the mean of the draws of the guide, up to its tiny noise."""
    guide = guide_of(name)
    values = sample_sites(guide, num_samples=15, chunk_size=chunk_size, seed=0)
    assert values.keys() == {"attention"}
    weights = WEIGHTS.get(name, lambda value: value.softmax(-1))(values["attention"])
    if chunk_size == 1:
        assert torch.equal(weights, sample_posterior(guide, num_samples=15, seed=0)["attention"])
    expected = (weights @ VALUES.squeeze(1))[..., 0, 0]
    torch.testing.assert_close(Predictive(guide.model, posterior_samples=values)()["y"], expected, atol=0.01, rtol=0)
    for row, mean in zip(values["attention"], expected, strict=True):
        trace = poutine.trace(poutine.condition(guide.model, {"attention": row})).get_trace()
        replayed = poutine.replay(guide.model, trace=trace_of_latent(row))()
        for found in (trace.nodes["_RETURN"]["value"], replayed):
            torch.testing.assert_close(found, mean)


def trace_of_latent(value):
    """A trace in which the site of the attention is latent, and has this value."""
    return poutine.trace(lambda: pyro.sample("attention", pyro.distributions.Delta(value))).get_trace()


def test_other_latent_sites_stay_with_the_attention_of_their_run():
    """A site with a posterior, or in keep_prior, is there; y, which no one passed, is not. Their sum is the output."""
    model = Reader(FixedGammaPrior(), shift=True)
    messenger = AttentionGuide(model, {"attention": Weibull(5.0), "shift": AutoNormalMessenger(model)})
    named = AttentionGuide(model, Weibull(5.0), keep_prior=["shift"])
    for guide in (messenger, named):
        drawn = sample_sites(guide, num_samples=10, chunk_size=4, seed=0)
        assert {name: tuple(value.shape) for name, value in drawn.items()} == {
            "shift": (10,),
            "attention": (10, 2, 1, 3),
        }
        expected = predict(guide, num_samples=10, chunk_size=4, keep_samples=True, seed=0).samples
        found = Predictive(model, posterior_samples=drawn)()["y"]
        torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
    assert sample_sites(AttentionGuide(model, Weibull(5.0)), num_samples=2).keys() == {"attention"}


def test_draws_given_the_observations():
    """Values of draws given y have the weights of the same draws, whose mean is that of quadrature, not the guide's."""
    attention = LatentAttention("attention", ScorePrior(LogNormal(1.0)))

    def model(y=None):
        with pyro.plate("items", 2):
            mean = attention(torch.zeros(2, 1, 2), torch.tensor([[[0.0], [1.0]]]), layout=Dense(event_dim=2)).context
            pyro.sample("y", Normal(mean[..., 0, 0], 0.2), obs=y)

    guide, y = AttentionGuide(model, FromPrior()), torch.tensor([0.9, 0.2])
    options = {"num_samples": 5000, "chunk_size": 1000, "seed": 0}
    weighted = importance_posterior(guide, y, **options)
    values = importance_posterior(guide, y, values=True, **options).resample(seed=1)["attention"]
    assert torch.equal(values.softmax(-1), weighted.resample(seed=1)["attention"])
    # by quadrature over the difference of both log weights, Normal(0, sqrt 2)
    d = torch.linspace(-12, 12, 20001, dtype=torch.double).unsqueeze(-1)
    share = (Normal(0, math.sqrt(2)).log_prob(d) + Normal(d.sigmoid(), 0.2).log_prob(y)).softmax(0)
    expected = (share * d.sigmoid()).sum(0)
    drawn = values.softmax(-1)[..., 0, 1].double()
    error = drawn.std(0) / weighted.effective_sample_size.sqrt()
    assert ((drawn.mean(0) - expected).abs() < 4 * error).all()
    replicated = Predictive(model, posterior_samples={"attention": values[::20]})()["y"].double()
    assert ((replicated.mean(0) - expected).abs() < 0.1).all()


def test_all_latent_sites_given_the_observations():
    """A prior-keeping site is in, resampled with the attention: y is the sum of both, and so are they together."""
    attention = LatentAttention("attention", ScorePrior(LogNormal(1.0)))

    def model(y=None):
        shift = pyro.sample("shift", Normal(0.0, 1.0))
        out = attention(torch.zeros(1, 1, 2), torch.tensor([[[0.0], [4.0]]])).context
        return pyro.sample("y", Normal(out[..., 0, 0, 0] + shift, 1.0), obs=y)

    guide = AttentionGuide(model, FromPrior())
    drawn = importance_posterior(guide, torch.tensor(4.0), num_samples=600, values=True, seed=0).resample(seed=1)
    assert drawn.keys() == {"attention", "shift"}
    sums = 4 * drawn["attention"].softmax(-1)[:, 0, 0, 1] + drawn["shift"]
    assert (sums - 4).square().mean() < 2  # of the prior it is above 6
    replicated = Predictive(model, posterior_samples=drawn)()["y"]
    assert (replicated - 4).square().mean() < 3


# normalized weights where log weights are expected


GRAPH = EdgeList.from_edge_index(torch.tensor([[0, 1, 2, 0, 1], [0, 0, 0, 1, 1]]), num_nodes=3)
MASK = torch.tensor([[True, True, False], [True, False, True], [False, False, False]])
LAYOUTS = {
    "dense": (Dense(), (1, 3, 3)),
    "masked, and a query without keys": (Dense(MASK), (1, 3, 3)),
    "graph": (GRAPH, (5, 1)),
}


@pytest.mark.parametrize("give", ["condition", "around the guide", "do", "replay", "Predictive"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("normalizer", [None, DoublyNormalized(), Hybrid()], ids=str)
def test_weights_are_refused_and_their_logarithms_are_not(layout, give, normalizer):
    where, shape = LAYOUTS[layout]
    attention = LatentAttention("attention", FixedGammaPrior(), normalizer=normalizer)
    values = torch.randn(3, 1, 2) if where is GRAPH else torch.randn(1, 3, 2)

    def model():
        return attention(torch.zeros(shape), values, layout=where).context

    guide = AttentionGuide(model, Weibull(2.0))

    def run(value):
        handlers = {
            "condition": lambda: poutine.condition(model, {"attention": value}),
            "around the guide": lambda: poutine.condition(guide, {"attention": value}),
            "do": lambda: poutine.do(model, {"attention": value}),
            "replay": lambda: poutine.replay(model, trace=trace_of_latent(value)),
            "Predictive": lambda: Predictive(model, posterior_samples={"attention": value.unsqueeze(0)}),
        }
        return handlers[give]()()

    draw = {"num_samples": 1, "seed": 0}
    weights, value = sample_posterior(guide, **draw)["attention"][0], sample_sites(guide, **draw)["attention"][0]
    run(value)
    for wrong in (weights, weights.double(), weights.half()):
        with pytest.raises(ValueError, match=r"site 'attention': the value that was given is normalized weights"):
            run(wrong)
    with pyro.validation_enabled(False):
        run(weights)  # as the message says
    if normalizer is None:  # the other remedy
        run(weights.clamp_min(1e-30).log())
        found = poutine.condition(model, {"attention": weights.clamp_min(1e-30).log()})()
        torch.testing.assert_close(found, poutine.condition(model, {"attention": value})())


@pytest.mark.parametrize("name", ["dirichlet"])
def test_weights_of_other_kinds_are_refused_too(name):
    guide = guide_of(name)
    weights = sample_posterior(guide, num_samples=3)
    with pytest.raises(ValueError, match="expected their logarithms"):
        Predictive(guide.model, posterior_samples=weights)()


@pytest.mark.parametrize("name", ["alignment", "gaussian"])
def test_weights_that_are_the_value_itself_are_taken(name):
    guide = guide_of(name)
    soft = torch.tensor([[[0.2, 0.3, 0.5]], [[1.0, 0.0, 0.0]]])
    mean = poutine.condition(guide.model, {"attention": soft})()
    torch.testing.assert_close(mean, (soft @ VALUES.squeeze(1))[..., 0, 0])


def test_what_is_drawn_is_not_looked_at(monkeypatch):
    """Neither a step, nor a site beside one that is conditioned, pays for the check."""
    looked = []
    monkeypatch.setattr(
        "pyro_attention.attention._check_not_weights", lambda value, call, prior: looked.append(call.site)
    )
    guide = guide_of("weibull")
    AttentionELBO().loss(guide.model, guide, torch.zeros(2))
    poutine.condition(guide.model, {"y": torch.zeros(2)})()
    predict(poutine.condition(guide, {"y": torch.zeros(2)}), num_samples=2)
    assert not looked
    poutine.condition(guide.model, {"attention": torch.zeros(2, 1, 3)})()
    assert looked == ["attention"]


def test_log_weights_between_zero_and_one_are_no_weights():
    """Uniform log weights (zeros), and such as are nearly weights; one key alone, which has a weight of one anyway."""
    guide = guide_of("weibull")
    for value in (torch.zeros(2, 1, 3), torch.tensor([[[0.2, 0.3, 0.501]], [[0.2, 0.3, 0.5]]])):
        poutine.condition(guide.model, {"attention": value})()
    attention = LatentAttention("attention", FixedGammaPrior())
    poutine.condition(
        lambda: attention(torch.zeros(1, 2, 1), torch.ones(1, 1, 2)), {"attention": torch.ones(1, 2, 1)}
    )()


# models without attention


def without_attention(x, y=None):
    with pyro.plate("items", len(x)):
        pyro.sample("y", Normal(x, pyro.sample("noise", Normal(0.0, 1.0).expand([1])).exp()), obs=y)
    return x


@pytest.mark.parametrize(
    "draw",
    [
        sample_posterior,
        sample_sites,
        importance_posterior,
        predict,
        posterior_attention,
        attention_dims,
        lambda *args: importance_posterior(*args, values=True),
        lambda *args: predict(*args, observed="y"),
        lambda *args: sample_posterior(*args, chunk_size=5),
        lambda *args: predict(*args, noise="none"),
        lambda guide, *args: exact_alignments(guide.model, *args),
    ],
)
@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize("model", [without_attention, lambda x, y: x], ids=["another latent site", "no site"])
def test_a_model_without_attention(draw, model):
    guide = AttentionGuide(model, Weibull(), keep_prior=["noise"])
    with pytest.raises(ValueError, match=r"no attention site|attention sites: none"):
        draw(guide, torch.zeros(3), torch.zeros(3))
