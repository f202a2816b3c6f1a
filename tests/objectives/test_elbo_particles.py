"""Vectorised particles equal the looped mean, for dense and for graph attention."""

import pytest
import torch

from models.gat import GAT
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualLogNormalPrior,
    FixedGammaPrior,
    Gamma,
    LogNormal,
    Soft,
    Weibull,
)
from tests.helpers import assert_mean
from tests.toy_models import FreeScores, GraphData, SelfAttention, Sequences

PARTICLES = 3


def unpadded():
    data = Sequences.random()
    return SelfAttention(), (data.x, data.y), 1


def padded():
    data = Sequences.random()
    return SelfAttention(), (data.x, data.y, data.padding), 1


def causal():
    data = Sequences.random()
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    model = SelfAttention()
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "attn_mask": mask}), with_kwargs=True)
    return model, (data.x, data.y), 1


def graph():
    return GAT(5, 3, hidden=4, heads=2, output_heads=2, dropout=0.0), GraphData.random().arguments, 0


def without_plates():
    return FreeScores(FixedGammaPrior()), (torch.zeros(1, 3, 4),), 0


every_model = pytest.mark.parametrize("make", [unpadded, padded, causal, graph, without_plates])


def losses_and_gradients(model, family, arguments, nesting, seeds=(0,), particles=PARTICLES):
    """Loss and total KL with looped and with vectorised particles, stacked over seeds; gradients of the last seed."""
    results = []
    for vectorize in (False, True):
        elbo = AttentionELBO(num_particles=particles, vectorize_particles=vectorize, max_plate_nesting=nesting)
        guide, values = AttentionGuide(model, family), []
        for seed in seeds:
            torch.manual_seed(seed + 1000 * vectorize)
            loss = elbo.differentiable_loss(model, guide, *arguments)
            kl = torch.as_tensor(sum(elbo.kl_record.values()))
            values.append(torch.stack([loss.detach(), kl]))
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        results.append((torch.stack(values), gradients))
    return results


@every_model
def test_soft_attention_exactly(make):
    model, arguments, nesting = make()
    (looped, loop_gradients), (vectorised, gradients) = losses_and_gradients(model, Soft(), arguments, nesting)
    torch.testing.assert_close(vectorised, looped)
    assert looped[0, 0] > 0.1
    torch.testing.assert_close(gradients, loop_gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "family"),
    [(unpadded, Weibull(2.0)), (padded, Gamma(2.0)), (graph, Weibull(2.0)), (without_plates, Gamma(2.0))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_stochastic_attention_in_mean(make, family):
    model, arguments, nesting = make()
    (looped, _), (vectorised, _) = losses_and_gradients(model, family, arguments, nesting, seeds=range(30))
    assert_mean(vectorised[:, 0] - looped[:, 0], 0.0)
    # the mean of particles varies less than one particle does: they are drawn independently
    (single, _), _ = losses_and_gradients(model, family, arguments, nesting, seeds=range(30), particles=1)
    assert vectorised[:, 0].var() < 0.8 * single[:, 0].var()


@pytest.mark.parametrize("vectorize", [False, True])
def test_the_record_is_the_mean_over_particles(vectorize):
    """Where the KL does not depend on the noise, neither does the number of particles."""
    model = FreeScores(ContextualLogNormalPrior(4))
    elbos = [AttentionELBO(num_particles=n, vectorize_particles=vectorize, max_plate_nesting=0) for n in (1, PARTICLES)]
    for elbo in elbos:
        elbo.loss(model, AttentionGuide(model, LogNormal()), torch.zeros(1, 3, 4))
    one, several = (elbo.kl_record["attention"] for elbo in elbos)
    assert one > 1
    torch.testing.assert_close(several, one)


def test_plate_nesting_is_guessed():
    model, arguments, _ = unpadded()
    elbo = AttentionELBO(num_particles=2, vectorize_particles=True)
    value = elbo.loss(model, AttentionGuide(model, Soft()), *arguments)
    assert value == pytest.approx(AttentionELBO().loss(model, AttentionGuide(model, Soft()), *arguments), rel=1e-5)
