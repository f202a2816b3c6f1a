"""Layers inside torch.func's transforms, and their second derivatives."""

import copy

import pyro
import pytest
import torch
from pyro.distributions import Normal
from torch.autograd import gradgradcheck
from torch.func import functional_call, grad, hessian, stack_module_state, vmap

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    DoublyNormalized,
    Gamma,
    GraphAttention,
    LogNormal,
    MultiheadAttention,
    Weibull,
)
from pyro_attention.blocked import BlockedMultiheadAttention
from pyro_attention.normalizers import NORMALIZERS
from pyro_attention.ops.noise import uniform
from tests.helpers import POSITIVE_PRIORS, make_normalizer, make_prior

BATCH, LENGTH, WIDTH, HEADS = 3, 4, 8, 2
PADDING = torch.arange(LENGTH) >= torch.tensor([[4], [2], [3]])
EDGES = torch.tensor([[0, 1, 2, 2, 3, 3], [1, 1, 0, 1, 2, 2]])
every_prior = pytest.mark.parametrize("prior", POSITIVE_PRIORS)


def multihead(prior="gamma_contextual", **options):
    return MultiheadAttention(WIDTH, HEADS, prior=make_prior(prior, width=WIDTH // HEADS), **options)


@pytest.fixture
def x():
    return torch.randn(BATCH, LENGTH, WIDTH)


@every_prior
@pytest.mark.parametrize("masks", [{}, {"is_causal": True}], ids=["", "causal"])
@pytest.mark.parametrize("padding", [None, PADDING, torch.zeros(3, 4).masked_fill(PADDING, -torch.inf)])
def test_vmap(prior, padding, masks, x):
    layer = multihead(prior)
    expected = layer(x, x, x, key_padding_mask=padding, **masks)

    def one(x, padding):
        return layer(x, x, x, key_padding_mask=padding, **masks)

    actual = vmap(one, in_dims=(0, None if padding is None else 0))(x, padding)
    torch.testing.assert_close(actual, expected)


@every_prior
def test_an_ensemble(prior, x):
    layers = [multihead(prior) for _ in range(BATCH)]
    state = stack_module_state(layers)

    def one(parameters, buffers, x):
        return functional_call(layers[0], (parameters, buffers), (x, x, x))[0]

    expected = torch.stack([layer(x, x, x)[0] for layer, x in zip(layers, x, strict=True)])
    torch.testing.assert_close(vmap(one)(*state, x), expected)


def test_gradients_of_each_example(x):
    layer = multihead()

    def loss(parameters, x):
        return functional_call(layer, parameters, (x, x, x))[0].square().sum()

    weight = layer.q_proj.weight
    expected = [torch.autograd.grad(layer(x, x, x)[0].square().sum(), weight)[0] for x in x]
    actual = vmap(grad(loss), in_dims=(None, 0))(dict(layer.named_parameters()), x)["q_proj.weight"]
    torch.testing.assert_close(actual, torch.stack(expected))


@pytest.mark.parametrize("normalizer", list(NORMALIZERS))
def test_graphs(normalizer, x):
    layer = GraphAttention(WIDTH, 3, HEADS, normalizer=make_normalizer(normalizer))
    torch.testing.assert_close(vmap(lambda x: layer(x, EDGES))(x), layer(x, EDGES))

    def loss(parameters, x):
        return functional_call(layer, parameters, (x, EDGES)).square().sum()

    expected = torch.autograd.grad(layer(x[0], EDGES).square().sum(), layer.lin_src.weight)[0]
    actual = grad(loss)(dict(layer.named_parameters()), x[0])["lin_src.weight"]
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("family", [Weibull(), LogNormal(), Gamma()], ids=lambda family: type(family).__name__)
@pytest.mark.parametrize(("randomness", "same"), [("different", False), ("same", True)])
@pytest.mark.parametrize("length", [LENGTH, 130], ids=["few", "many"])
def test_draws_under_a_guide(family, randomness, same, length):
    """As vmap's randomness says; many draws are made in another way."""
    layer, x = multihead(), torch.randn(1, length, WIDTH).expand(2, -1, -1)

    def one(x):
        guide = AttentionGuide(lambda: layer(x, x, x)[1], family)
        return guide.run().output

    first, second = vmap(one, randomness=randomness)(x)
    assert torch.equal(first, second) == same
    torch.testing.assert_close(first.sum(-1), torch.ones(length))


def test_checks_look_at_every_entry(x):
    """Also where vmap hides the dimension."""
    layer = multihead()
    x[2, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"site 'attention': .* of 96 scores are NaN or infinite"):
        vmap(lambda x: layer(x, x, x)[0])(x)
    doubly, x = multihead(normalizer=DoublyNormalized()), torch.randn(BATCH, LENGTH, WIDTH)
    with pytest.raises(ValueError, match="would leak the future"):
        vmap(lambda x: doubly(x, x, x, is_causal=True)[0])(x)
    numbers = torch.zeros(BATCH, LENGTH)
    numbers[1, 1] = torch.nan
    with pytest.raises(ValueError, match="key_padding_mask is NaN or infinite in 1 of 12 entries"):
        vmap(lambda x, mask: layer(x, x, x, mask)[0])(x, numbers)


def test_what_does_not_go_with_transforms(x):
    blocked = BlockedMultiheadAttention(WIDTH, HEADS)
    for transform in (vmap, lambda function: grad(lambda x: function(x).sum())):
        with pytest.raises(ValueError, match=r"site 'attention': blocked attention does not support .* torch\.func"):
            transform(lambda x: blocked(x, x, x, need_weights=False)[0])(x)
    graph = GraphAttention(WIDTH, 3)
    with pytest.raises(ValueError, match="expected the same edges for every entry"):
        vmap(lambda x, edges: graph(x, edges))(x, EDGES.expand(BATCH, 2, -1))


def test_draws_inside_a_transform_have_their_range():
    draws = vmap(lambda _: uniform((20_000,)), randomness="different")(torch.zeros(2))
    assert ((draws > 0) & (draws < 1)).all()
    assert not torch.equal(*draws)


LAYERS = {
    "multihead": (lambda: multihead(), lambda layer, x: layer(x, x, x)[0]),
    "lognormal": (lambda: multihead("lognormal_contextual"), lambda layer, x: layer(x, x, x)[0]),
    "graph": (lambda: GraphAttention(WIDTH, 2, HEADS), lambda layer, x: layer(x, EDGES)),
    "graph, edges": (
        lambda: GraphAttention(WIDTH, 2, HEADS, edge_dim=1),
        lambda layer, x: layer(x, EDGES, torch.linspace(-1, 1, 6, dtype=x.dtype)),
    ),
    "graph, doubly": (
        lambda: GraphAttention(WIDTH, 2, HEADS, normalizer=DoublyNormalized()),
        lambda layer, x: layer(x, EDGES),
    ),
}


@pytest.mark.parametrize("make", LAYERS)
def test_second_derivatives(make):
    """Of the layer, and of the loss with a closed-form KL."""
    build, call = LAYERS[make]
    layer = build().double()
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda x: call(layer, x), x, fast_mode=True)

    def loss(x):
        def model():
            context = call(layer, x)
            pyro.sample("y", Normal(context, 1.0).to_event(2), obs=torch.zeros_like(context))

        pyro.set_rng_seed(0)
        return AttentionELBO().differentiable_loss(model, AttentionGuide(model, Weibull(3.0)))

    # Pyro's hook on gradients does not take undefined ones
    assert gradgradcheck(loss, x, fast_mode=True, check_undefined_grad=False)


@pytest.mark.parametrize("make", LAYERS)
def test_hessians(make):
    build, call = LAYERS[make]
    layer, x = build().double(), torch.randn(LENGTH, WIDTH, dtype=torch.float64)

    def loss(x):
        return call(layer, x).square().sum()

    torch.testing.assert_close(hessian(loss)(x), torch.autograd.functional.hessian(loss, x))


def test_layers_are_copied_after_a_transform(x):
    layer = GraphAttention(WIDTH, 2, HEADS)
    vmap(lambda x: layer(x, EDGES))(x)
    assert torch.equal(copy.deepcopy(layer)(x, EDGES), layer(x, EDGES))
