"""Names of sites: from the path of the layer, the same wherever the model is copied to, and never one for two."""

import copy
import pickle
import re
from contextlib import nullcontext

import pytest
import torch
from pyro import poutine
from pyro.contrib.autoname import scope
from torch import nn

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    GraphAttention,
    Hybrid,
    MultiheadAttention,
    Weibull,
    name_sites,
)
from pyro_attention.analysis import hybrid_weights

WIDTH, HEADS = 4, 2


class Net(nn.Module):
    """Two layers without a name, one with."""

    def __init__(self, **options):
        super().__init__()
        self.blocks = nn.ModuleList(MultiheadAttention(WIDTH, HEADS, **options) for _ in range(2))
        self.last = MultiheadAttention(WIDTH, HEADS, name="named")

    def forward(self, x):
        for layer in (*self.blocks, self.last):
            x = layer(x, x, x)[0]
        return x


NAMES = ["blocks.0", "blocks.1", "named"]


def sites(model):
    return list(AttentionGuide(model, Weibull())(torch.randn(3, WIDTH)))


@pytest.mark.parametrize(
    "duplicate",
    [lambda net: net, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))],
    ids=["", "deep", "pickle"],
)
@pytest.mark.parametrize("used", [False, True])
def test_names_of_a_module(duplicate, used):
    net = Net()
    if used:
        sites(net)
    assert sites(duplicate(net)) == NAMES


@pytest.mark.parametrize("wrap", [lambda net: net.forward, lambda net: poutine.scale(net, scale=2.0)])
def test_names_of_a_method_and_of_a_module_in_a_handler(wrap):
    assert sites(wrap(Net())) == NAMES


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_names_in_a_module_that_holds_model_and_guide(duplicate):
    """As torch's DistributedDataParallel and Lightning wrap it: paths start at the guide's model."""
    net = Net()
    guide = AttentionGuide(net, {"blocks.*": Weibull(), "named": Weibull(3.0)})
    loss = duplicate(nn.ModuleDict({"module": AttentionELBO()(net, guide)}))
    loss["module"](torch.randn(3, WIDTH))
    assert list(loss["module"].elbo.kl_record) == NAMES


def test_names_without_a_guide():
    net = Net()
    assert name_sites(net) == NAMES
    trace = poutine.trace(net).get_trace(torch.randn(3, WIDTH))
    assert [name for name, site in trace.nodes.items() if site["type"] == "sample"] == NAMES


@pytest.mark.parametrize("make", [lambda: MultiheadAttention(WIDTH, HEADS), lambda: GraphAttention(WIDTH, 3)])
def test_a_layer_that_is_the_model(make):
    """Keeps its default name, also after another model has named it."""
    layer = make()
    assert name_sites(nn.ModuleDict({"inner": layer})) == ["inner"]
    assert name_sites(layer) == [layer.default_name]


def test_the_running_guide_names_the_sites():
    """Whatever was done to the model since: a layer replaced, another guide made, a layer copied."""
    net = Net()
    guide, x = AttentionGuide(net, Weibull()), torch.randn(3, WIDTH)
    net.blocks[0] = MultiheadAttention(WIDTH, HEADS)
    AttentionGuide(net.blocks[1], Weibull())
    assert list(guide(x)) == NAMES
    net.blocks[1] = copy.deepcopy(net.blocks[0])
    assert [name for name in guide.run(x).trace.nodes if name in NAMES] == NAMES


def in_function(net):
    return lambda x: net(x)


@pytest.mark.parametrize(("name", "names"), [(None, ["0", "1"]), ("same", ["same", "same"])])
def test_two_layers_in_a_function_do_not_share_a_name(name, names):
    def model(x):
        for layer in net:
            layer(x, x, x)

    net = nn.ModuleList([MultiheadAttention(WIDTH, HEADS, name=name) for _ in range(2)])
    message = rf"site '{name or 'attention'}' is there twice in one run.*name_sites\(net\).*autoname\.scope"
    with pytest.raises(ValueError, match=message):
        sites(model)
    assert name_sites(net) == names
    with pytest.raises(ValueError, match=message) if name else nullcontext():
        assert sites(model) == names


def test_a_layer_that_is_called_twice():
    layer = MultiheadAttention(WIDTH, HEADS)

    def model(x):
        for step in range(2):
            with scope(prefix=f"step{step}"):
                x = layer(x, x, x)[0]

    assert sites(model) == ["step0/attention", "step1/attention"]


def test_name_sites_wants_a_module():
    with pytest.raises(TypeError, match=r"model is a function, expected a torch\.nn.Module"):
        name_sites(in_function(Net()))


def test_mixing_weights_of_layers_without_names():
    net = nn.ModuleList(MultiheadAttention(WIDTH, HEADS, normalizer=Hybrid()) for _ in range(2))
    with pytest.raises(ValueError, match=re.escape("call name_sites(model) first")):
        hybrid_weights(net)
    name_sites(net)
    assert list(hybrid_weights(net)) == ["0", "1"]
