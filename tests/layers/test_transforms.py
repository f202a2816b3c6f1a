"""Layers inside torch.func's transforms, torch.compile and torch.export, and their second derivatives."""

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, stack_module_state, vmap

from pyro_attention import AttentionELBO, AttentionGuide, DoublyNormalized, GraphAttention, MultiheadAttention, Weibull
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.normalizers import NORMALIZERS
from tests.helpers import POSITIVE_PRIORS, make_normalizer, make_prior
from tests.toy_models import SelfAttention, Sequences

BATCH, LENGTH, WIDTH, HEADS = 3, 4, 8, 2
PADDING = torch.arange(LENGTH) >= torch.tensor([[4], [2], [3]])
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 0, 1, 2, 2]])


def multihead(prior="gamma_contextual", **options):
    return MultiheadAttention(WIDTH, HEADS, prior=make_prior(prior, width=WIDTH // HEADS), **options)


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@pytest.mark.parametrize("prior", POSITIVE_PRIORS)
def test_vmap_and_an_ensemble(prior, x):
    layers = [multihead(prior) for _ in range(BATCH)]
    for padding in (PADDING, torch.zeros(3, 4).masked_fill(PADDING, -torch.inf)):

        def one(x, padding):
            return layers[0](x, x, x, key_padding_mask=padding, is_causal=True)

        torch.testing.assert_close(vmap(one)(x, padding), one(x, padding))

    def member(parameters, buffers, x):
        return functional_call(layers[0], (parameters, buffers), (x, x, x))[0]

    expected = torch.stack([layer(x, x, x)[0] for layer, x in zip(layers, x, strict=True)])
    torch.testing.assert_close(vmap(member)(*stack_module_state(layers), x), expected)


LAYERS = {
    "multihead": (multihead, lambda layer, x: layer(x, x, x)[0]),
    **{name: (lambda name=name: GraphAttention(WIDTH, 2, HEADS, normalizer=make_normalizer(name)),
              lambda layer, x: layer(x, EDGES)) for name in NORMALIZERS},
    "edges": (
        lambda: GraphAttention(WIDTH, 2, HEADS, edge_dim=1),
        lambda layer, x: layer(x, EDGES, torch.linspace(-1, 1, 6, dtype=x.dtype)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", LAYERS)
def test_gradients_of_each_example_and_second_derivatives(make, x):
    """Of the layer, and of the loss with a closed-form KL."""
    build, call = LAYERS[make]
    layer, x = build().double(), x.double()
    parameters = dict(layer.named_parameters())

    def square(parameters, x):
        return functional_call(_Called(layer, call), {f"layer.{k}": v for k, v in parameters.items()}, x).square().sum()

    name = "q_proj.weight" if make == "multihead" else "lin_src.weight"
    expected = [torch.autograd.grad(call(layer, one).square().sum(), parameters[name])[0] for one in x]
    actual = vmap(grad(square), in_dims=(None, 0))(parameters, x)[name]
    torch.testing.assert_close(actual, torch.stack(expected))
    first = x[0].requires_grad_()
    assert gradgradcheck(lambda x: call(layer, x), first, fast_mode=True)

    def loss(x):
        def model():
            context = call(layer, x)
            pyro.sample("y", Normal(context, 1.0).to_event(2), obs=torch.zeros_like(context))

        pyro.set_rng_seed(0)
        return AttentionELBO().differentiable_loss(model, AttentionGuide(model, Weibull(3.0)))

    # Pyro's hook on gradients does not take undefined ones
    assert gradgradcheck(loss, first, fast_mode=True, check_undefined_grad=False)


class _Called(torch.nn.Module):
    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


@pytest.mark.parametrize(("randomness", "same"), [("different", False), ("same", True)])
@pytest.mark.parametrize("length", [LENGTH, 130], ids=["few", "many"])
def test_draws_under_a_guide(randomness, same, length):
    """As vmap's randomness says; many draws are made in another way."""
    layer, family, x = multihead(), Weibull(), torch.randn(1, length, WIDTH).expand(2, -1, -1)
    draw = vmap(lambda x: AttentionGuide(lambda: layer(x, x, x)[1], family).run().output, randomness=randomness)
    first, second = draw(x)
    assert torch.equal(first, second) == same
    torch.testing.assert_close(first.sum(-1), torch.ones(length))


def test_what_does_not_go_with_transforms(x):
    doubly, blocked = multihead(normalizer=DoublyNormalized()), BlockedMultiheadAttention(WIDTH, HEADS)
    with pytest.raises(ValueError, match="would leak the future"):
        vmap(lambda x: doubly(x, x, x, is_causal=True)[0])(x)
    with pytest.raises(ValueError, match=r"site 'attention': blocked attention does not support .* torch\.func"):
        vmap(lambda x: blocked(x, x, x, need_weights=False)[0])(x)


# torch.compile and torch.export


def sequences(batch, length):
    """Inputs with both kinds of masks, float and boolean."""
    x, future = torch.randn(batch, length, WIDTH), torch.ones(length, length).triu(1).bool()
    return x, x, x, torch.zeros(batch, length).masked_fill(future[-2], -torch.inf), True, future


def nodes(_, count):
    """A ring, with one self loop that the layer replaces."""
    ring = torch.arange(count)
    return torch.randn(count, WIDTH), torch.cat([torch.stack([ring, ring.roll(1)]), torch.zeros(2, 1).long()], 1)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("make", "inputs", "open_dims"),
    [("multihead", sequences, [(0, 1)] * 4 + [()] + [(0, 1)]), ("softmax", nodes, [(0,), (1,)])],
    ids=["multihead", "graph"],
)
def test_export(make, inputs, open_dims, strict):
    """What is exported with one size runs at another, as torch's and PyG's layers do."""
    layer = LAYERS[make][0]()
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.DYNAMIC) or None for dims in open_dims)
    program = torch.export.export(layer, inputs(2, 5), dynamic_shapes=shapes, strict=strict)
    larger = inputs(3, 7)
    torch.testing.assert_close(program.module()(*larger), layer(*larger))


@pytest.mark.slow
# The graph breaks where a layer looks at what Pyro does, and at whether its inputs are finite.
@pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`-wrapped function")
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
def test_a_compiled_layer_in_a_training_step():
    data, model, found = Sequences.random(), SelfAttention(layers=1), []
    torch.compiler.reset()
    for compiled in (False, True):
        if compiled:
            model.layers[0].compile(backend="eager")
        torch.manual_seed(0)
        loss = AttentionELBO()(model, AttentionGuide(model, Weibull()))(data.x, data.y)
        found.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*found)
    torch.compiler.reset()
