"""The layers stand where those that they mirror stood, in models of other people and where Pyro runs nothing."""

import copy
import pickle
from contextlib import ExitStack, nullcontext

import pyro
import pytest
import torch
import torch_geometric.nn as pyg
from pyro import poutine
from pyro.contrib.autoname import scope
from pyro.contrib.autoname.scoping import NameCountMessenger
from torch import nn

from pyro_attention import (
    AttentionGuide,
    Dense,
    FixedGammaPrior,
    GraphAttention,
    LatentAttention,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.families.dirichlet import DirichletPrior
from pyro_attention.families.gaussian import FixedGaussianPrior
from pyro_attention.integrations.torch_nn import bayesian
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import POSITIVE_PRIORS, make_normalizer, make_prior

BATCH, LENGTH, WIDTH, HEADS = 3, 5, 8, 2
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 2, 1, 2, 0]])


def latent(model):
    """A copy of a model with our layers in place of torch's and PyG's."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        parent, _, child = name.rpartition(".")
        if type(module) is nn.MultiheadAttention:
            setattr(model.get_submodule(parent), child, MultiheadAttention.from_torch(module))
        elif type(module) is pyg.GATConv:
            model.get_submodule(parent).add_module(child, GraphAttention.from_pyg(module))
    return model


def under_soft(model, *args, plate=True, **kwargs):
    """What a model returns, in a plate for the batch, and the names of its sites."""

    def in_plate(*args, **kwargs):
        with pyro.plate("batch", BATCH):
            return model(*args, **kwargs)

    guide = AttentionGuide(model, Soft())  # names the sites
    run = (AttentionGuide(in_plate, Soft()) if plate else guide).run(*args, **kwargs)
    return run.output, [name for name, site in run.trace.nodes.items() if "prior" in (site.get("infer") or {})]


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize("convert", [latent, bayesian])
def test_attention_that_is_asked_for_by_its_class(convert):
    """PyG's layer tests isinstance() and leaves out attention of another class."""
    theirs = pyg.GPSConv(WIDTH, conv=None, heads=HEADS, dropout=0.0, norm=None)
    arguments = torch.randn(LENGTH + 3, WIDTH), EDGES, torch.tensor([0] * 3 + [1] * 2 + [2] * 3)
    mine, expected = convert(copy.deepcopy(theirs)), theirs(*arguments)
    assert_same(under_soft(mine, *arguments)[0], expected)
    assert_same(pickle.loads(pickle.dumps(mine))(*arguments), expected)
    mine.reset_parameters()
    assert not mine(*arguments).allclose(expected, atol=0.1)


class Network(nn.Module):
    """One layer, for a transformation of networks."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)


class Messages(pyg.MessagePassing):
    """What the page on graphs of one's own puts around the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    forward = Network.forward


def test_layers_of_pyg():
    """A sequence; a relation between nodes of one type, and one between two types; a transformation of networks."""
    first, second = pyg.GATConv(WIDTH, 4, heads=2), pyg.GATConv(8, 3, heads=2, concat=False)
    theirs = pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x") for layer in (first, second)])
    x = torch.randn(5, WIDTH)
    output, sites = under_soft(latent(theirs), x, EDGES, plate=False)
    assert_same(output, theirs(x, EDGES))
    assert len(set(sites)) == 2
    kinds = ("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")
    theirs = pyg.HeteroConv({kind: pyg.GATConv((WIDTH, WIDTH), 4, add_self_loops=False) for kind in kinds})
    nodes, edges = {"paper": x, "author": torch.randn(4, WIDTH)}, dict.fromkeys(kinds, EDGES)
    mine, expected = latent(theirs), theirs(nodes, edges)
    assert_same(under_soft(mine, nodes, edges, plate=False)[0], expected)
    assert all(name.startswith("convs.<") for name in AttentionGuide(mine, Weibull())(nodes, edges))
    layers = [layer((WIDTH, WIDTH), 4, add_self_loops=False) for layer in (pyg.GATConv, GraphAttention)]
    theirs, mine = (
        pyg.to_hetero(Network(layer), (list(nodes), list(edges))) for layer in (layers[0], Messages(layers[1]))
    )
    for path, layer in theirs.named_modules():
        if isinstance(layer, pyg.GATConv):
            mine.get_submodule(path).layer.load_state_dict(GraphAttention.from_pyg(layer).state_dict())
    assert_same(under_soft(mine, nodes, edges, plate=False)[0], theirs(nodes, edges))


# without Pyro


MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


OTHERS = {"dirichlet": DirichletPrior, "gaussian_fixed": FixedGaussianPrior}
CASES = [(name, "softmax") for name in POSITIVE_PRIORS] + [("gamma_fixed", name) for name in NORMALIZERS]


@pytest.mark.parametrize(("name", "normalizer"), [*CASES, *((name, "softmax") for name in OTHERS)])
def test_layers_that_nobody_runs_by_pyro_are_ordinary_attention(name, normalizer):
    """The weights of Soft(), whatever the prior, in a batch without a plate; and no seed is touched."""
    prior = OTHERS[name]() if name in OTHERS else make_prior(name)
    scores, values = torch.randn(2, HEADS, 3, 4), torch.randn(2, HEADS, 4, 3)
    layer, state = LatentAttention("attention", prior, normalizer=make_normalizer(normalizer)), torch.get_rng_state()
    output = layer(scores, values, keys=values, layout=Dense(MASK))
    torch.testing.assert_close(output.weights, layer.normalizer(scores, Dense(MASK)))
    torch.testing.assert_close(output.context, output.weights @ values)
    assert torch.equal(torch.get_rng_state(), state)


HANDLERS = {
    "nothing": (nullcontext, False),
    "mask": (lambda: poutine.mask(mask=True), False),
    "trace": (poutine.trace, True),
    "seed": (lambda: poutine.seed(rng_seed=1), False),  # sets a seed and stays off Pyro's stack
    "condition": (lambda: poutine.condition(data={"y": torch.ones(())}), True),
    "block": (poutine.block, True),
    "scope": (lambda: scope(prefix="a"), False),  # names a site, if there is one
    "name_count": (NameCountMessenger, False),
    "infer_config": (lambda: poutine.infer_config(config_fn=lambda _: {"enumerate": "parallel"}), False),
}


@pytest.mark.parametrize(("handler", "drawn"), HANDLERS.values(), ids=HANDLERS)
def test_which_handlers_run_a_model(handler, drawn):
    scores, values = torch.randn(1, HEADS, 1, 4), torch.randn(1, HEADS, 4, 3)
    layer = LatentAttention("attention", FixedGammaPrior())
    for inner in (nullcontext(), pyro.plate("batch", 1)):
        with ExitStack() as stack:
            stack.enter_context(handler())
            stack.enter_context(inner)
            weights = layer(scores, values).weights
        assert weights.allclose(scores.softmax(-1)) != drawn
