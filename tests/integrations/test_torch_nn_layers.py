"""Layers of torch.nn made Bayesian one by one: what stays, what cannot be converted, and wrong arguments."""

import copy
from functools import partial

import pyro
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from pyro_attention import AttentionGuide, DoublyNormalized, FixedGammaPrior, MultiheadAttention, Soft, Weibull
from pyro_attention.integrations.torch_nn import bayesian, deterministic

BATCH, LENGTH, MEMORY, WIDTH, HEADS = 3, 5, 4, 8, 2


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


def make_decoder():
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, HEADS, 16, batch_first=True), 2)


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 3, "vdim": 6}], ids=str)
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_layer_by_itself(options, batch_first):
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options)
    mine = bayesian(theirs)
    assert isinstance(mine, MultiheadAttention)
    x, z = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, MEMORY, WIDTH)
    x, z = (x, z) if batch_first else (x.transpose(0, 1), z.transpose(0, 1))
    inputs = x, z[..., : theirs.kdim], z[..., : theirs.vdim]
    for average in (True, False):
        assert_same(*(each(*inputs, average_attn_weights=average) for each in (mine, theirs)))
    one = [tensor.select(0 if batch_first else 1, 0) for tensor in inputs]  # unbatched
    assert_same(mine(*one)[0], theirs(*one)[0])
    back = deterministic(mine)
    torch.testing.assert_close(back.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert repr(back) == repr(theirs)
    with pytest.raises(TypeError, match=r"query is of type list"):
        mine([x], x, x)


class Tied(nn.Module):
    """One attention under two names, and in two parents."""

    def __init__(self, layer):
        super().__init__()
        self.first = self.second = layer
        self.more = nn.ModuleList([layer])

    def forward(self, x):
        for layer in (self.first, self.second, self.more[0]):
            x = x + layer(x, x, x)[0]
        return x


def test_tied_layers_stay_tied():
    theirs = Tied(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    mine, x = bayesian(copy.deepcopy(theirs)), torch.randn(BATCH, LENGTH, WIDTH)
    assert mine.first is mine.second is mine.more[0]
    assert_same(mine(x), theirs(x))

    def model(x):
        with pyro.plate("batch", BATCH):
            return mine(x)

    for _ in range(2):  # the second run counts from the start
        assert list(AttentionGuide(model, Weibull())(x)) == ["first", "first.1", "first.2"]
    assert_same(AttentionGuide(model, Soft()).run(x).output, theirs(x))
    back = deterministic(mine)
    assert back.first is back.second is back.more[0]
    assert_same(back(x), theirs(x))


class OwnForward(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def parametrised():
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    nn.utils.parametrizations.weight_norm(layer.out_proj)
    return layer


def pruned():
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    prune.random_unstructured(layer.out_proj, "weight", 0.5)
    return layer


def hooked():
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    layer.register_forward_hook(lambda *args: None)
    return layer


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (partial(nn.MultiheadAttention, WIDTH, HEADS, add_bias_kv=True), ValueError, "add_bias_kv=True"),
        (partial(nn.MultiheadAttention, WIDTH, HEADS, add_zero_attn=True), ValueError, "add_zero_attn=True"),
        (partial(OwnForward, WIDTH, HEADS), TypeError, "cannot copy a OwnForward, expected .* torch's own forward"),
        (
            partial(torch.ao.nn.quantizable.MultiheadAttention, WIDTH, HEADS),
            TypeError,
            "expected .* torch's own forward",
        ),
        (parametrised, ValueError, r"with out_proj.parametrizations.*remove_parametrizations"),
        (pruned, ValueError, "with out_proj.weight_mask, out_proj.weight_orig in its state.*pruning"),
        (hooked, ValueError, "forward hooks.*register them on the copy"),
    ],
)
def test_layers_that_cannot_be_converted(make, error, message):
    """Nothing changes then, and the rest can be converted without them."""
    module = nn.ModuleDict({"good": nn.MultiheadAttention(WIDTH, HEADS), "bad": make()})
    before = dict(module.items())
    with pytest.raises(error, match=rf"^'bad': .*{message}.*; or name the others by sites="):
        bayesian(module)
    assert dict(module.items()) == before
    assert type(bayesian(module, sites="good")["bad"]) is type(before["bad"])


@pytest.mark.parametrize(
    ("module", "options", "error", "message"),
    [
        (nn.Linear(2, 2), {}, ValueError, r"has no torch.nn.MultiheadAttention"),
        (
            make_decoder(),
            {"sites": "encoder.*"},
            ValueError,
            r"matches 'encoder.\*'; .*'layers.0.self_attn', ",
        ),
        (make_decoder(), {"sites": ["*", "x"]}, ValueError, r"matches 'x'"),
        (make_decoder(), {"sites": []}, ValueError, r"sites is empty, expected .* 'layers.0.self_attn'"),
        (make_decoder(), {"prior": FixedGammaPrior()}, TypeError, r"prior is FixedGamma.*expected a name"),
        (make_decoder(), {"prior": 3}, TypeError, r"prior is 3, expected a name"),
        (make_decoder(), {"prior": "gamma"}, ValueError, r"unknown prior 'gamma'"),
        (make_decoder(), {"prior": lambda key_dim: 3}, TypeError, r"site 'layers.0.self_attn': prior= made a int"),
    ],
)
def test_wrong_arguments(module, options, error, message):
    before = repr(module)
    with pytest.raises(error, match=message):
        bayesian(module, **options)
    assert repr(module) == before


@pytest.mark.parametrize("prior", ["gamma_fixed", FixedGammaPrior, partial(FixedGammaPrior, 1.0)])
def test_priors_without_a_network(prior):
    layer = bayesian(nn.MultiheadAttention(WIDTH, HEADS), prior=prior)
    assert isinstance(layer.attention.prior, FixedGammaPrior)
    assert repr(layer.attention.prior) == repr(FixedGammaPrior())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "has no pyro_attention.MultiheadAttention"),
        (MultiheadAttention(WIDTH, HEADS, normalizer=DoublyNormalized()), "torch's layer has no DoublyNormalized"),
    ],
)
def test_no_way_back(module, message):
    with pytest.raises(ValueError, match=message):
        deterministic(module)
