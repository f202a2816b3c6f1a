"""The network runs once per training step, so prior and posterior see the same dropout masks."""

from collections import Counter

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import nn

from models.gat import GAT
from pyro_attention import AttentionELBO, AttentionGuide, Weibull
from tests.toy_models import GraphData, SelfAttention, Sequences, attention_values


def self_attention():
    data = Sequences.random()
    model = SelfAttention(dropout=0.5)
    model.out = nn.Sequential(nn.BatchNorm1d(4), model.out)
    return model, (data.x, data.y, data.padding)


def graph_attention():
    return GAT(5, 3, hidden=4, heads=2, dropout=0.5), GraphData.random().arguments


def by_svi(elbo, model, guide, arguments):
    SVI(model, guide, Adam({"lr": 0.01}), elbo).step(*arguments)


def by_module(elbo, model, guide, arguments):
    elbo(model, guide)(*arguments).backward()


def by_differentiable_loss(elbo, model, guide, arguments):
    elbo.differentiable_loss(model, guide, *arguments).backward()


def by_loss(elbo, model, guide, arguments):
    elbo.loss(model, guide, *arguments)


every_model = pytest.mark.parametrize("make", [self_attention, graph_attention])
every_step = pytest.mark.parametrize("step", [by_svi, by_module, by_differentiable_loss, by_loss])


def count_calls(model):
    """Number of forward calls of every submodule, kept up to date."""
    calls = Counter()
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList):
            calls[name] = 0
            module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    return calls


@every_model
@every_step
def test_every_module_runs_once(make, step):
    model, arguments = make()
    calls = count_calls(model)
    step(AttentionELBO(), model, AttentionGuide(model, Weibull()), arguments)
    assert model.training
    # both models drop the input of each of their two layers
    assert calls == {name: 2 if name == "dropout" else 1 for name in calls}


@every_step
def test_batch_statistics_are_updated_once(step):
    model, arguments = self_attention()
    step(AttentionELBO(), model, AttentionGuide(model, Weibull()), arguments)
    assert model.out[0].num_batches_tracked == 1


@every_step
@pytest.mark.parametrize(("vectorize", "passes"), [(False, 3), (True, 1)])
def test_particles(step, vectorize, passes):
    model, arguments = graph_attention()
    calls = count_calls(model)
    elbo = AttentionELBO(num_particles=3, vectorize_particles=vectorize, max_plate_nesting=0)
    step(elbo, model, AttentionGuide(model, Weibull()), arguments)
    assert calls["layers.0"] == calls[""] == passes


def test_a_plain_guide_runs_the_network_twice():
    """The counter does see a second pass."""
    model, arguments = graph_attention()
    calls = count_calls(model)
    guide = pyro.poutine.block(model, hide=["labels"])
    by_differentiable_loss(AttentionELBO(kl_weight=0), model, guide, arguments)
    assert calls["layers.0"] == 2


@every_model
def test_prior_and_posterior_share_dropout(make):
    """E[S] of the posterior in the second layer is what that layer's prior proposes, dropout included."""
    model, arguments = make()
    guide = AttentionGuide(model, Weibull())
    proposals = []
    for _ in range(2):
        trace = pyro.poutine.trace(guide).get_trace(*arguments)
        site = trace.nodes["layers.1"]
        torch.testing.assert_close(site["fn"].log_expected_weight, site["infer"]["prior"].scores)
        proposals.append(site["infer"]["prior"].scores)
    assert not torch.equal(*proposals)
    assert set(attention_values(guide, *arguments)) == {"layers.0", "layers.1"}
