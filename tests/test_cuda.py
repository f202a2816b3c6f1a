"""A training step on a GPU, in float32 and under autocast."""

from dataclasses import fields

import pytest
import torch

from models.gat import GAT
from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    Gamma,
    LogNormal,
    Soft,
    Weibull,
    importance_posterior,
    predict,
    sample_posterior,
)
from tests.toy_models import GraphData, SelfAttention, Sequences

pytestmark = pytest.mark.cuda
DEVICE = "cuda"


def moved(data):
    return type(data)(*(getattr(data, field.name).to(DEVICE) for field in fields(data)))


def self_attention():
    data = moved(Sequences.random())
    return SelfAttention(dropout=0.1).to(DEVICE), (data.x, data.y, data.padding)


def graph_attention():
    return GAT(5, 3, hidden=4, heads=2, dropout=0.1).to(DEVICE), moved(GraphData.random()).arguments


every_model = pytest.mark.parametrize("make", [self_attention, graph_attention])
every_family = pytest.mark.parametrize("family", [Soft, Weibull, Gamma, LogNormal])


@every_model
@every_family
@pytest.mark.parametrize("autocast", [False, True])
def test_training_step(make, family, autocast):
    """And predictions of what was trained."""
    model, arguments = make()
    guide = AttentionGuide(model, (family() if family is Soft else family(learnable=True)).to(DEVICE))
    loss = AttentionELBO()(model, guide)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.01)
    before = [parameter.detach().clone() for parameter in loss.parameters()]
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            value = loss(*arguments)
        assert value.device.type == DEVICE
        assert value.dtype == torch.float32
        value.backward()
        optimizer.step()
    with_gradient = [parameter for parameter in loss.parameters() if parameter.grad is not None]
    assert all(parameter.grad.isfinite().all() for parameter in with_gradient)
    assert all(parameter.dtype == torch.float32 for parameter in loss.parameters())
    changed = [not old.equal(new) for old, new in zip(before, loss.parameters(), strict=True)]
    assert sum(changed) == len(with_gradient) > len(before) / 2
    prediction = predict(guide, *arguments[:1], *arguments[1:2][: make is graph_attention], num_samples=3)
    assert prediction.mean.device.type == DEVICE


@every_model
def test_equals_the_cpu(make):
    """Soft attention, without noise, gives the same loss and gradients on both devices."""
    model, arguments = make()
    model.eval()
    results = []
    for device in (DEVICE, "cpu"):
        model.zero_grad()
        inputs = [argument.to(device) for argument in arguments]
        value = AttentionELBO()(model.to(device), AttentionGuide(model, Soft()))(*inputs)
        value.backward()
        gradients = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        results.append((value.detach().cpu(), gradients))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)


@every_family
def test_a_guide_that_was_made_on_the_cpu(family):
    """Its model was moved, with data that have padding; the width stays on the CPU."""
    model, arguments = self_attention()
    guide = AttentionGuide(model, family())
    AttentionELBO()(model, guide)(*arguments).backward()
    drawn = sample_posterior(guide, *arguments, num_samples=3, seed=0)
    assert all(weights.device.type == DEVICE for weights in drawn.values())


def test_importance_weights():
    """Their tails are fitted by Pyro, which computes on the CPU."""
    model, arguments = self_attention()
    posterior = importance_posterior(AttentionGuide(model, Weibull()), *arguments, num_samples=30)
    assert posterior.pareto_k.device.type == posterior.trusted.device.type == DEVICE
