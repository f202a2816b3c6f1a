"""torch.compile: compiled layers give the same numbers, alone and in a training step."""

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


def test_in_a_training_step():
    data, model, found = Sequences.random(), SelfAttention(layers=1), []
    for compiled in (False, True):
        if compiled:
            model.layers[0].compile(backend="eager")
        torch.manual_seed(0)
        loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))(data.x, data.y)
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*found)
