"""Guides and ELBO modules are copied by pickle, torch.save and deepcopy, before and after use."""

import copy
import io
import pickle

import pyro
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam

from pyro_attention import AttentionELBO, AttentionGuide, LogNormal, Weibull, predict
from tests.toy_models import SelfAttention, Sequences


def through_pickle(module):
    return pickle.loads(pickle.dumps(module))


def through_torch_save(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    ("duplicate", "used"),
    [(through_pickle, False), (through_pickle, True), (through_torch_save, True), (copy.deepcopy, True)],
)
def test_guide_and_module_survive_copying(used, duplicate):
    data = Sequences.random()
    model = SelfAttention()
    guide = AttentionGuide(model, {"layers.0": Weibull(5.0, learnable=True), "*": LogNormal(0.3)})
    loss = AttentionELBO(kl_weight=0.5)(model, guide)
    if used:
        SVI(model, guide, Adam({"lr": 0.05}), AttentionELBO()).step(data.x, data.y)
        loss(data.x, data.y).backward()
        loss.zero_grad()
    guide_copy, loss_copy = duplicate(guide), duplicate(loss)
    pyro.clear_param_store()
    values = [predict(g, data.x, num_samples=2, seed=0).mean for g in (guide, guide_copy)]
    assert torch.equal(*values)
    pyro.clear_param_store()
    torch.manual_seed(0)
    expected = loss(data.x, data.y)
    pyro.clear_param_store()
    torch.manual_seed(0)
    value = loss_copy(data.x, data.y)
    assert value.equal(expected)
    value.backward()
    assert all(parameter.grad is not None for parameter in loss_copy.parameters())
    assert all(parameter.grad is None for parameter in loss.parameters())
    guide_copy.load_state_dict(guide.state_dict())
