"""Latent sites beside attention that keep their prior add no KL, and none does so without a word."""

import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_attention import (
    AlignmentELBO,
    AttentionELBO,
    AttentionGuide,
    MultiheadAttention,
    Soft,
    Weibull,
    check_model,
)
from pyro_attention.families.weibull import WeibullWeights
from tests.toy_models import Sequences, attention_values


@pytest.fixture
def data():
    return Sequences.random()


def model_with(prior):
    """Attention whose noise has a latent scale."""
    layer = MultiheadAttention(4, 2)

    def model(x, y=None):
        scale = pyro.sample("scale", prior)
        with pyro.plate("batch", x.size(0), dim=-1):
            mean = layer(x, x, x)[0].sum((-1, -2))
            pyro.sample("y", dist.Normal(mean, 1 + scale.abs()), obs=y)

    return model


@pytest.mark.parametrize("names", ["scale", "sc*", ["scale"], ("other", "scale")])
def test_one_name_or_several(names, data):
    """One name alone is a pattern, not a list of its letters; nothing is warned of."""
    model = model_with(dist.HalfNormal(0.5))
    guide = AttentionGuide(model, Weibull(), keep_prior=names)
    assert guide.keeps_prior("scale")
    assert not guide.keeps_prior("c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttentionELBO().loss(model, guide, data.x, data.y)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("kind", [dist.HalfNormal, dist.StudentT, dist.Bernoulli])
def test_other_latent_sites_keep_their_prior(kind, trained, data):
    """A prior that learns does so through its samples; a discrete one would lack the score-function term."""
    parameter = torch.tensor(0.5, requires_grad=trained)
    model = model_with(kind(parameter))
    guide = AttentionGuide(model, Weibull(), keep_prior=["sc*"])
    assert isinstance(attention_values(guide, data.x, data.y)["attention"][0], WeibullWeights)
    elbo = AttentionELBO(num_particles=2, vectorize_particles=trained, max_plate_nesting=1)
    if trained and kind is dist.Bernoulli:
        with pytest.raises((ValueError, NotImplementedError), match=r"reparameteri[sz]ed"):
            elbo.differentiable_loss(model, guide, data.x, data.y)
        return
    elbo.differentiable_loss(model, guide, data.x, data.y).backward()
    assert elbo.kl_record["attention"] > 0
    assert elbo.kl_record.get("scale", 0) == 0
    assert not trained or parameter.grad.abs() > 1e-4


@pytest.mark.filterwarnings("ignore:TraceEnum_ELBO found no sample sites")
@pytest.mark.parametrize("objective", [AttentionELBO, AlignmentELBO])
def test_nothing_keeps_its_prior_without_a_word(objective, data):
    model = model_with(dist.HalfNormal(1.0))
    family = Weibull() if objective is AttentionELBO else Soft()  # of which AlignmentELBO has no KL to estimate
    guide, elbo = AttentionGuide(model, family, keep_prior=["other"]), objective(max_plate_nesting=1)
    message = (
        r"drawn from their prior: 'scale'; give .* 'scale': AutoNormalMessenger.* observe .* keep_prior=\['scale'\]"
    )
    with pytest.warns(UserWarning, match=message):
        elbo.differentiable_loss(model, guide, data.x, data.y)
    assert any("drawn from their prior: 'scale'" in each for each in check_model(model, guide, data.x, data.y).problems)
    guide(data.x)  # nor does a prediction warn of y, which is drawn there


@pytest.mark.filterwarnings("ignore:latent sites without a posterior")
def test_labels_that_are_hidden(data):
    """Those of ``obs_mask=`` are no alignments; under ``poutine.mask`` the loss is the cross entropy of the others."""
    layer, seen, labels = MultiheadAttention(4, 2), torch.arange(6) < 4, (data.y > 0).long()

    def model(x, y, by_argument):
        with pyro.plate("batch", x.size(0)):
            label = dist.Categorical(logits=layer(x, x, x)[0].sum(-2))
            if by_argument:
                pyro.sample("y", label, obs=y, obs_mask=seen)
            else:
                with poutine.mask(mask=seen):
                    pyro.sample("y", label, obs=y)
            return label.logits

    guide = AttentionGuide(model, Soft())
    with pytest.raises(ValueError, match=r"site 'y_unobserved': Categorical has no .* poutine.mask instead of"):
        AttentionELBO().differentiable_loss(model, guide, data.x, labels, True)
    expected = nn.functional.cross_entropy(guide.run(data.x, labels, False).output[seen], labels[seen])
    assert AttentionELBO().loss(model, guide, data.x, labels, False) == pytest.approx(4 * expected.item(), rel=1e-5)
