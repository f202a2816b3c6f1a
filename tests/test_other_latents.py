"""Latent sites that are no attention keep their prior and add no KL, under looped and vectorised particles."""

import pyro
import pytest
import torch
from pyro.distributions import Bernoulli, HalfNormal, Normal, StudentT

from pyro_attention import AttentionELBO, AttentionGuide, MultiheadAttention, Weibull, WeibullWeights
from tests.toy_models import Sequences, attention_values

vectorized = pytest.mark.parametrize("vectorize", [False, True])


def model_with(prior):
    """Attention whose noise has a latent scale."""
    layer = MultiheadAttention(4, 2)

    def model(x, y):
        scale = pyro.sample("scale", prior)
        with pyro.plate("batch", x.size(0), dim=-1):
            mean = layer(x, x, x).context.sum((-1, -2))
            pyro.sample("y", Normal(mean, 1 + scale.abs()), obs=y)

    return model


@vectorized
@pytest.mark.parametrize(
    "prior",
    [HalfNormal(1.0), StudentT(5.0), Bernoulli(0.5)],
    ids=["closed_form", "no_closed_form", "discrete"],
)
def test_other_latent_sites_keep_their_prior(vectorize, prior):
    data = Sequences.random()
    model = model_with(prior)
    guide = AttentionGuide(model, Weibull())
    sites = attention_values(guide, data.x, data.y)
    assert sites["scale"][0] is prior
    assert isinstance(sites["attention"][0], WeibullWeights)
    elbo = AttentionELBO(num_particles=2, vectorize_particles=vectorize, max_plate_nesting=1)
    elbo.differentiable_loss(model, guide, data.x, data.y).backward()
    assert elbo.kl_record["attention"] > 0
    assert elbo.kl_record.get("scale", 0) == 0


@vectorized
def test_learnable_priors_train_through_their_samples(vectorize):
    data = Sequences.random()
    scale = torch.tensor(1.0, requires_grad=True)
    model = model_with(HalfNormal(scale))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=vectorize, max_plate_nesting=1)
    elbo.differentiable_loss(model, AttentionGuide(model, Weibull()), data.x, data.y).backward()
    assert scale.grad.abs() > 1e-3


@vectorized
def test_learnable_discrete_priors_are_refused(vectorize):
    """Their gradient would lack the score-function term, silently."""
    data = Sequences.random()
    model = model_with(Bernoulli(torch.tensor(0.5, requires_grad=True)))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=vectorize, max_plate_nesting=1)
    with pytest.raises((ValueError, NotImplementedError), match=r"reparameteri[sz]ed"):
        elbo.differentiable_loss(model, AttentionGuide(model, Weibull()), data.x, data.y)
