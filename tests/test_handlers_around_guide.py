"""Pyro's handlers around a guide: observed sites are scored by their prior; what cannot stand there says so."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Importance, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.infer.importance import vectorized_importance_weights
from pyro.infer.predictive import WeighedPredictive
from pyro.infer.reparam import LocScaleReparam
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AlignmentPrior,
    Amortised,
    AttentionELBO,
    AttentionGuide,
    Categorical,
    Dense,
    FixedGammaPrior,
    FixedLogNormalPrior,
    Gamma,
    GumbelSoftmax,
    LatentAttention,
    LogNormal,
    ScoreFunctionELBO,
    Soft,
    SparseCategorical,
    Weibull,
    predict,
    sample_posterior,
)
from tests.rest_guides import Shifted
from tests.toy_models import Sequences

PLACES = torch.tensor([0.0, 1.0, 3.0])
Y = torch.tensor([1.0, -1.0])


def around_and_inside(model, family, data):
    """The two places of a condition."""
    return poutine.condition(AttentionGuide(model, family), data), AttentionGuide(
        poutine.condition(model, data), family
    )


@pytest.mark.parametrize("family", [Weibull(5.0), LogNormal(0.3), Gamma(2.0), Soft()], ids=str)
def test_observed_weights_are_scored_by_their_prior(family):
    """The only attention site is observed: the loss is -log p(log S) - log p(y | S), by torch's own densities."""
    layer = LatentAttention("attention", FixedGammaPrior(2.0, 3.0))

    def model():
        context = layer(torch.tensor([[[1.0, 0.0, 2.0], [0.0, 0.5, 0.0]]]), PLACES[None, :, None]).context
        pyro.sample("y", dist.Normal(context.flatten(-3), 1.0).to_event(1), obs=Y)

    log_s = torch.randn(1, 2, 3)
    prior = torch.distributions.Gamma(2.0, 3.0).log_prob(log_s.exp()) + log_s
    data = torch.distributions.Normal(log_s[0].softmax(-1) @ PLACES, 1.0).log_prob(Y)
    expected = -(prior.sum() + data.sum()).item()
    for guide in around_and_inside(model, family, {"attention": log_s}):
        particles = AttentionELBO(num_particles=3, vectorize_particles=True)
        for elbo in (AttentionELBO(), particles, Trace_ELBO(), TraceMeanField_ELBO()):
            assert elbo.loss(model, guide) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ValueError, match="no attention site matches 'other'; the model's sites: 'attention'"):
        AttentionGuide(poutine.condition(model, {"attention": log_s}), {"other": family})()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Parameter(torch.randn(2, 1, 3))

    def forward(self):
        return self.scores


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize(
    "family",
    [Categorical(), Categorical(enumerate=False), SparseCategorical(), GumbelSoftmax(), Soft()],
    ids=str,
)
def test_observed_alignments_are_scored_by_their_prior(family):
    layer, scores = LatentAttention("alignment", AlignmentPrior()), torch.randn(2, 1, 3)

    def model():
        with pyro.plate("queries", 2):
            mean = layer(scores, PLACES[None, :, None], layout=Dense(event_dim=2)).context.flatten(-3)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)

    keys = torch.tensor([0, 2])
    prior = scores.squeeze(1).log_softmax(-1)[[0, 1], keys]
    expected = -(prior + dist.Normal(PLACES[keys], 1.0).log_prob(Y)).sum().item()
    for guide in around_and_inside(model, Amortised(Network(), family), {"alignment": keys}):
        elbos = [AlignmentELBO(max_plate_nesting=1), AttentionELBO(), ScoreFunctionELBO()]
        for elbo in elbos + [AlignmentELBO()] * ("enumerate" in family.infer):
            assert elbo.loss(model, guide) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def data():
    return Sequences.random()


@pytest.fixture
def model():
    return Shifted()


class Own(AttentionGuide):
    """Overrides Pyro's extension point at a site that is no attention."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loc = nn.Parameter(torch.tensor(0.3))

    def get_posterior(self, name, prior):
        return dist.Normal(self.loc, 0.5) if name == "shift" else super().get_posterior(name, prior)


@pytest.mark.filterwarnings("error:latent sites without a posterior")
def test_a_subclass_keeps_the_kl_of_its_own_posteriors(model, data):
    guide = Own(model, Weibull(5.0), keep_prior=["noise", "effect"])
    for mine, stock in ((AttentionELBO(), TraceMeanField_ELBO()), (AttentionELBO(kl="sampled"), Trace_ELBO())):
        losses = []
        for elbo in (mine, stock):
            pyro.set_rng_seed(1)
            losses.append(elbo.loss(model, guide, data.x, data.y))
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    kl = torch.distributions.kl_divergence(dist.Normal(0.3, 0.5), dist.Normal(0.0, 2.0))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=True)
    elbo.loss(model, guide, data.x, data.y)
    torch.testing.assert_close(elbo.kl_record["shift"], kl)
    # observed around the guide: its prior scores it
    with poutine.condition(data={"shift": torch.tensor(0.7)}):
        guide(data.x, data.y)
    node = guide.get_traces()[0].nodes["shift"]
    assert node["fn"].log_prob(node["value"]) == dist.Normal(0.0, 2.0).log_prob(torch.tensor(0.7))


def with_and_without_rest(model):
    rest = AttentionGuide(model, Weibull(5.0), rest=AutoNormal)
    return rest, AttentionGuide(model, Weibull(5.0), keep_prior=["*"])


@pytest.mark.parametrize("around", [0, 1], ids=["rest", "no rest"])
def test_replay_repeats_a_run(around, model, data):
    guide = with_and_without_rest(model)[around]
    trace = poutine.trace(guide).get_trace(data.x, data.y)
    replayed = poutine.trace(poutine.replay(guide, trace=trace)).get_trace(data.x, data.y)
    for name in ("shift", "effect", "layers.0"):
        assert replayed.nodes[name]["value"].equal(trace.nodes[name]["value"])
    losses = [AttentionELBO().loss(model, poutine.replay(guide, trace=trace), data.x, data.y) for _ in range(2)]
    assert losses[0] == losses[1]
    # the prior is that of this run, not of the one that is repeated
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    AttentionELBO().loss(model, poutine.replay(guide, trace=trace), data.x, data.y)
    with poutine.replay(trace=trace):
        guide(data.x, data.y)
    prior, posterior = (side.nodes["layers.0"]["fn"] for side in guide.get_traces())
    assert posterior.log_expected_weight.equal(prior.scores)


@pytest.mark.parametrize("around", [0, 1], ids=["rest", "no rest"])
def test_uncondition_draws_the_observations(around, model, data):
    guide = poutine.uncondition(with_and_without_rest(model)[around])
    drawn = [guide(data.x, data.y)["y"] for _ in range(2)]
    assert not drawn[0].equal(drawn[1])
    assert not drawn[0].equal(data.y)


@pytest.mark.parametrize("around", [0, 1], ids=["rest", "no rest"])
def test_handlers_that_belong_inside(around, model, data):
    guide = with_and_without_rest(model)[around]
    value = torch.tensor(0.7)
    for name, wrap in (
        ("do", lambda inner: poutine.do(inner, {"shift": value})),
        ("reparam", lambda inner: poutine.reparam(inner, {"effect": LocScaleReparam()})),
    ):
        with pytest.raises(ValueError, match=rf"poutine.{name} stands around .* AttentionGuide\(poutine.{name}\(model"):
            AttentionELBO().loss(model, wrap(guide), data.x, data.y)
        inside = AttentionGuide(wrap(model), Weibull(5.0), keep_prior=["*"])
        assert math.isfinite(AttentionELBO().loss(inside.model, inside, data.x, data.y))


@pytest.mark.parametrize("around", [0, 1], ids=["rest", "no rest"])
def test_predictions_with_clamped_weights(around, model, data):
    """As with the condition around the call; weights are those of the value."""
    guide, value = with_and_without_rest(model)[around], torch.randn(6, 2, 5, 5)
    guide(data.x)  # an autoguide looks at the model once
    clamped, options = {"layers.0": value}, {"num_samples": 3, "seed": 0}
    with poutine.condition(data=clamped):
        expected = predict(guide, data.x, **options)
    found = predict(poutine.condition(guide, clamped), data.x, **options)
    assert found.mean.equal(expected.mean)
    weights = sample_posterior(poutine.condition(guide, clamped), data.x, num_samples=2)["layers.0"]
    torch.testing.assert_close(weights, value.softmax(-1).expand(2, 6, 2, 5, 5))
    with pytest.raises(TypeError, match="guide is a Shifted, expected an AttentionGuide"):
        predict(poutine.condition(model, clamped), data.x)


def test_evidence_by_importance_sampling():
    """With the observations hidden, as the page says, against quadrature over the difference of the log weights."""
    layer, y, draws = LatentAttention("attention", FixedLogNormalPrior(-1.0, 0.5)), torch.tensor(0.9), 20000

    def model():
        weight = layer(torch.zeros(1, 1, 2), torch.tensor([[[0.0], [1.0]]])).context.flatten(-3).squeeze(-1)
        pyro.sample("y", dist.Normal(weight, 0.2), obs=y)

    difference = torch.linspace(-12, 12, 4001)
    density = dist.Normal(0.0, 0.5 * 2**0.5).log_prob(difference) + dist.Normal(difference.sigmoid(), 0.2).log_prob(y)
    expected = torch.trapezoid(density.exp(), difference)
    guide = poutine.block(AttentionGuide(model, LogNormal(0.8)), hide_fn=lambda site: site["is_observed"])
    with torch.no_grad():
        vectorized, _, _ = vectorized_importance_weights(model, guide, num_samples=draws, max_plate_nesting=0)
        found = [vectorized, WeighedPredictive(model, guide=guide, num_samples=draws, parallel=True)().log_weights]
        found.append(torch.stack(Importance(model, guide, num_samples=400).run().log_weights))
    for log_weights in found:
        weights = log_weights.exp()
        assert abs(weights.mean() - expected) < 4 * weights.std() / len(weights) ** 0.5
        assert weights.std() / len(weights) ** 0.5 < 0.1 * expected
