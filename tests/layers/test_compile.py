"""torch.compile and torch.export: layers give the same numbers, alone, in a training step, and at other sizes."""

from collections.abc import Iterator

import pytest
import torch

from pyro_attention import AttentionELBO, AttentionGuide, GraphAttention, MultiheadAttention, Weibull
from tests.toy_models import SelfAttention, Sequences

# The graph breaks where a layer looks at what Pyro does, and at whether its inputs are finite.
pytestmark = [
    pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function"),
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin"),
]
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 0, 1, 2, 2]])
LAYERS = {
    "multihead": (lambda: MultiheadAttention(8, 2), lambda layer, x: layer(x, x, x, is_causal=True)[0]),
    "graph": (lambda: GraphAttention(8, 4, 2), lambda layer, x: layer(x, EDGES)),
}


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["multihead", pytest.param("graph", marks=pytest.mark.slow)])
def test_alone(name):
    make, call = LAYERS[name]
    layer, x = make(), torch.randn(4, 8)
    expected, found = call(layer, x), call(torch.compile(layer, backend="eager"), x)
    assert torch.equal(found, expected)
    parameters = list(layer.parameters())
    options = {"allow_unused": True, "materialize_grads": True}  # the prior has no part in it
    gradients = [torch.autograd.grad(y.square().sum(), parameters, **options) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def sequences(batch, length):
    """Inputs with both kinds of masks, float and boolean."""
    x, future = torch.randn(batch, length, 8), torch.ones(length, length).triu(1).bool()
    return x, x, x, torch.zeros(batch, length).masked_fill(future[-2], -torch.inf), True, future


def nodes(_, count):
    """A ring, with one self loop that the layer replaces."""
    ring = torch.arange(count)
    return torch.randn(count, 8), torch.cat([torch.stack([ring, ring.roll(1)]), torch.zeros(2, 1).long()], 1)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "inputs", "open_dims"),
    [("multihead", sequences, [(0, 1)] * 4 + [()] + [(0, 1)]), ("graph", nodes, [(0,), (1,)])],
    ids=["multihead", "graph"],
)
def test_export(name, inputs, open_dims, strict):
    """What is exported with one size runs at another, as torch's and PyG's layers do."""
    layer = LAYERS[name][0]()
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) or None for dims in open_dims)
    program = torch.export.export(layer, inputs(2, 5), dynamic_shapes=shapes, strict=strict)
    larger = inputs(3, 7)
    torch.testing.assert_close(program.module()(*larger), layer(*larger))


def test_in_a_training_step():
    data, model, found = Sequences.random(), SelfAttention(layers=1), []
    for compiled in (False, True):
        if compiled:
            model.layers[0].compile(backend="eager")
        torch.manual_seed(0)
        loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))(data.x, data.y)
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*found)
