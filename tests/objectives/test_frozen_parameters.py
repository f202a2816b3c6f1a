"""Weights of a PyroModule that were frozen: Pyro trains them, and it is said."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.nn import PyroModule
from torch import nn

from pyro_attention import AttentionELBO, AttentionGuide, MultiheadAttention, Weibull, check_model
from pyro_attention.objectives.reached_parameters import FrozenWarning

LIGHT = AttentionELBO(kl_weight=1e-3)


class Regression(PyroModule):
    def __init__(self, head):
        super().__init__()
        self.attention, self.head = MultiheadAttention(4, 2), head

    def forward(self, x, y):
        with pyro.plate("items", len(x)):
            mean = self.head(self.attention(x, x, x)[0].mean(-2)).squeeze(-1)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.fixture(autouse=True)
def fresh():
    pyro.clear_param_store()
    torch.manual_seed(0)


@pytest.fixture
def data():
    return torch.randn(5, 3, 4), torch.randn(5)


def step(model, *, svi):
    guide = AttentionGuide(model, Weibull())
    return SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), LIGHT).step if svi else LIGHT(model, guide)


@pytest.mark.parametrize("svi", [True, False], ids=["SVI", "module"])
def test_a_frozen_pyro_layer_is_trained_and_it_is_said(svi, data):
    model = Regression(PyroModule[nn.Linear](4, 1).requires_grad_(False))
    before = model.head.weight.clone()
    train = step(model, svi=svi)
    with pytest.warns(
        FrozenWarning, match=r"2 parameters that were frozen take gradients now \(head.weight, head.bias\)"
    ):
        train(*data)
    assert model.head.weight.equal(before) is not svi  # what the warning says of SVI
    train(*data)  # it is said once


@pytest.mark.filterwarnings("ignore:.*was not registered in the param store")
def test_the_remedy(data):
    model = Regression(nn.Linear(4, 1).requires_grad_(False))
    before, query = model.head.weight.clone(), model.attention.q_proj.weight.clone()
    step(model, svi=True)(*data)
    assert model.head.weight.equal(before)
    assert not model.attention.q_proj.weight.equal(query)


def test_check_model_says_it_and_leaves_them_frozen(data):
    model = Regression(PyroModule[nn.Linear](4, 1).requires_grad_(False))
    (problem,) = check_model(model, AttentionGuide(model, Weibull()), *data, elbo=LIGHT).problems
    assert "2 parameters that were frozen take gradients now (head.weight, head.bias)" in problem
    assert not any(weight.requires_grad for weight in model.head.parameters())


def test_the_param_store_does_not_restore_modules(data, tmp_path):
    """What save_and_load.md says: load the states of the modules instead."""
    model = Regression(PyroModule[nn.Linear](4, 1))
    train = step(model, svi=True)
    for _ in range(3):
        train(*data)
    pyro.get_param_store().save(tmp_path / "store.pt")
    pyro.clear_param_store()
    restored = Regression(PyroModule[nn.Linear](4, 1))
    pyro.get_param_store().load(tmp_path / "store.pt")
    AttentionGuide(restored, Weibull())(*data)
    assert not restored.head.weight.equal(model.head.weight)
    restored.load_state_dict(model.state_dict())
    assert restored.head.weight.equal(model.head.weight)
