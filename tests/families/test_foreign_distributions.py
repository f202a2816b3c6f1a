"""Guides written by hand, at a site that holds log S: distributions of Pyro's own that hold it too, or do not."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Importance, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch.distributions.transforms import ExpTransform

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    Dense,
    Dirichlet,
    FixedGammaPrior,
    LatentAttention,
    Weibull,
)
from pyro_attention.families.base import Family
from pyro_attention.families.dirichlet import DirichletPrior, DirichletWeights
from pyro_attention.families.gaussian import FixedGaussianPrior
from pyro_attention.families.lognormal import FixedLogNormalPrior
from pyro_attention.families.weibull import WeibullWeights

PRIORS = {
    "gamma": FixedGammaPrior(),
    "contextual": ContextualGammaPrior(4),
    "lognormal": FixedLogNormalPrior(),
    "dirichlet": DirichletPrior(),
}
SHAPE = 2, 3, 4  # heads, queries, keys


class Model:
    def __init__(self, prior):
        self.attention, self.keys = LatentAttention("attention", prior), torch.randn(2, 4, 4)
        self.scores, self.y = torch.randn(SHAPE), torch.randn(SHAPE)

    def __call__(self):
        context = self.attention(self.scores, torch.eye(4).expand(2, 4, 4), keys=self.keys).context
        pyro.sample("y", dist.Normal(context, 0.3).to_event(3), obs=self.y)


def guide_of(distribution):
    return lambda: pyro.sample("attention", distribution)


ONE = torch.ones(SHAPE)
OF_WEIGHTS = {
    "Weibull": dist.Weibull(ONE, 10 * ONE).to_event(3),
    "Gamma": dist.Gamma(ONE, ONE).to_event(3),
    "LogNormal": dist.LogNormal(0 * ONE, ONE).to_event(3),
    "HalfNormal": dist.HalfNormal(ONE).to_event(3),
    "Exponential": dist.Exponential(ONE).to_event(3),
    "Beta": dist.Beta(ONE, ONE).to_event(3),
    "Dirichlet": dist.Dirichlet(ONE).to_event(2),
    "masked": dist.Weibull(ONE, ONE).mask(ONE > 0).to_event(3),
    "wider": dist.Weibull(torch.tensor(1.0), 1.0).expand(SHAPE).to_event(3),
}
LOSSES = [Trace_ELBO(), TraceMeanField_ELBO(), RenyiELBO(num_particles=2), AttentionELBO(kl="sampled")]


@pytest.mark.parametrize("elbo", LOSSES, ids=lambda elbo: type(elbo).__name__)
@pytest.mark.parametrize("name", OF_WEIGHTS)
def test_what_draws_weights_is_refused(name, elbo):
    with pytest.raises(TypeError, match="site 'attention' holds log S, the logarithms of weights, but the guide draws"):
        elbo.loss(Model(FixedGammaPrior()), guide_of(OF_WEIGHTS[name]))


@pytest.mark.parametrize("prior", PRIORS)
def test_it_is_refused_under_every_prior_and_by_all_that_replays(prior):
    model, guide = Model(PRIORS[prior]), guide_of(OF_WEIGHTS["Weibull"])
    for run in (
        lambda: Trace_ELBO().loss(model, guide),
        lambda: Importance(model, guide, num_samples=2).run(),
    ):
        with pytest.raises(TypeError, match="holds log S"):
            run()


class OfWeights(Family):
    kind = None

    def posterior(self, call, prior):
        return dist.Weibull(call.scores.exp(), torch.tensor(10.0)).to_event(3)


def test_a_family_of_weights_is_refused():
    model = Model(FixedGammaPrior())
    with pytest.raises(TypeError, match="holds log S"):
        AttentionGuide(model, OfWeights())()


def test_the_remedies_give_the_loss_of_the_guide():
    """The logarithm of a Weibull by Pyro's own means, the library's distribution, and the guide."""
    model, k = Model(FixedGammaPrior()), torch.tensor(10.0)
    scores = model.attention.make_call(model.scores, layout=Dense()).scores
    log_scale = scores - torch.lgamma(1 + 1 / k)
    logarithm = dist.TransformedDistribution(dist.Weibull(log_scale.exp(), k.expand(SHAPE)), [ExpTransform().inv])
    many = {
        "guide": AttentionGuide(model, Weibull(10.0)),
        "library": guide_of(WeibullWeights(log_scale, k)),
        "pyro": guide_of(logarithm.to_event(3)),
    }
    means = {}
    for name, guide in many.items():
        pyro.set_rng_seed(0)
        means[name] = torch.tensor([Trace_ELBO().loss(model, guide) for _ in range(400)])
    error = 4 * (2 * means["guide"].var() / 400).sqrt()
    assert abs(means["pyro"].mean() - means["guide"].mean()) < error
    assert abs(means["library"].mean() - means["guide"].mean()) < error
    losses = []
    for name in ("guide", "library"):
        pyro.set_rng_seed(0)
        losses.append(TraceMeanField_ELBO().loss(model, many[name]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_what_holds_logarithms_passes():
    """Normal, point masses, and Pyro's autoguides, over log S; weights that may be negative are no logarithms."""
    model = Model(FixedGammaPrior())
    for guide in (guide_of(dist.Normal(0 * ONE, ONE).to_event(3)), guide_of(dist.Delta(0 * ONE, event_dim=3))):
        assert Trace_ELBO().loss(model, guide) < float("inf")
    for auto in (AutoNormal(model), AutoDelta(model)):
        assert Trace_ELBO().loss(model, auto) < float("inf")
    gaussian = Model(FixedGaussianPrior())
    assert Trace_ELBO().loss(gaussian, guide_of(OF_WEIGHTS["Weibull"])) < float("inf")
    rows = DirichletWeights(torch.zeros(SHAPE))
    dirichlet = Model(DirichletPrior())
    assert Trace_ELBO().loss(dirichlet, guide_of(rows)) < float("inf")
    assert AttentionELBO().loss(dirichlet, AttentionGuide(dirichlet, Dirichlet())) < float("inf")
