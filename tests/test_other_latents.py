"""Latent sites that are no attention and keep their prior add no KL, under looped and vectorised particles."""

import pyro
import pytest
import torch
from pyro import poutine
from pyro.distributions import Bernoulli, Categorical, HalfNormal, Normal, StudentT

from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
)
from pyro_attention.check import PriorWarning
from pyro_attention.families.weibull import WeibullWeights
from tests.toy_models import Sequences, attention_values

vectorized = pytest.mark.parametrize("vectorize", [False, True])


def model_with(prior):
    """Attention whose noise has a latent scale."""
    layer = MultiheadAttention(4, 2)

    def model(x, y=None):
        scale = pyro.sample("scale", prior)
        with pyro.plate("batch", x.size(0), dim=-1):
            mean = layer(x, x, x)[0].sum((-1, -2))
            pyro.sample("y", Normal(mean, 1 + scale.abs()), obs=y)

    return model


@vectorized
@pytest.mark.parametrize(
    "prior", [HalfNormal(1.0), StudentT(5.0), Bernoulli(0.5)], ids=["closed_form", "no_closed_form", "discrete"]
)
def test_other_latent_sites_keep_their_prior(vectorize, prior):
    data = Sequences.random()
    model = model_with(prior)
    guide = AttentionGuide(model, Weibull(), keep_prior=["scale"])
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
    elbo.differentiable_loss(model, AttentionGuide(model, Weibull(), keep_prior=["scale"]), data.x, data.y).backward()
    assert scale.grad.abs() > 1e-3


@vectorized
def test_learnable_discrete_priors_are_refused(vectorize):
    """Their gradient would lack the score-function term, silently."""
    data = Sequences.random()
    model = model_with(Bernoulli(torch.tensor(0.5, requires_grad=True)))
    elbo = AttentionELBO(num_particles=2, vectorize_particles=vectorize, max_plate_nesting=1)
    with pytest.raises((ValueError, NotImplementedError), match=r"reparameteri[sz]ed"):
        elbo.differentiable_loss(model, AttentionGuide(model, Weibull(), keep_prior=["scale"]), data.x, data.y)


@pytest.mark.filterwarnings("ignore:latent sites without a posterior")
def test_labels_that_are_hidden():
    """Those of ``obs_mask=`` are no alignments; under ``poutine.mask`` the loss is the cross entropy of the others."""
    data, layer, seen = Sequences.random(), MultiheadAttention(4, 2), torch.arange(6) < 4
    labels = (data.y > 0).long()

    def model(x, y, by_argument):
        with pyro.plate("batch", x.size(0)):
            label = Categorical(logits=layer(x, x, x)[0].sum(-2))
            if by_argument:
                pyro.sample("y", label, obs=y, obs_mask=seen)
            else:
                with poutine.mask(mask=seen):
                    pyro.sample("y", label, obs=y)
            return label.logits

    guide = AttentionGuide(model, Soft())
    with pytest.raises(ValueError, match=r"site 'y_unobserved': Categorical has no .* use poutine.mask around"):
        AttentionELBO().differentiable_loss(model, guide, data.x, labels, True)
    expected = torch.nn.functional.cross_entropy(guide.run(data.x, labels, False).output[seen], labels[seen])
    assert AttentionELBO().loss(model, guide, data.x, labels, False) == pytest.approx(4 * expected.item(), rel=1e-5)


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize("objective", [AttentionELBO, AlignmentELBO])
@pytest.mark.parametrize("patterns", [(), ["other"]], ids=str)
def test_nothing_keeps_its_prior_without_a_word(objective, patterns):
    data, model = Sequences.random(), model_with(HalfNormal(1.0))
    guide = AttentionGuide(model, Weibull(), keep_prior=patterns)
    message = (
        r"drawn from their prior: 'scale'; give AttentionGuide a guide for them \(rest=AutoNormal\), observe them, or "
        r"say that they keep it \(keep_prior=\['scale'\]\)"
    )
    with pytest.warns(PriorWarning, match=message):
        objective(max_plate_nesting=1).differentiable_loss(model, guide, data.x, data.y)
    report = check_model(model, guide, data.x, data.y)
    assert any("drawn from their prior: 'scale'" in problem for problem in report.problems)
    guide(data.x)  # nor does a prediction warn of y, which is drawn there
    objective(max_plate_nesting=1).differentiable_loss(
        model, AttentionGuide(model, Weibull(), keep_prior=["sc*"]), data.x, data.y
    )


def test_patterns_of_kept_priors_are_a_list():
    with pytest.raises(TypeError, match=r"keep_prior is the string 'scale', expected names in a list: \['scale'\]"):
        AttentionGuide(model_with(HalfNormal(1.0)), Weibull(), keep_prior="scale")
