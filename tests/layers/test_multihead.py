"""MultiheadAttention under Soft() is torch.nn.MultiheadAttention, in every combination of arguments."""

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pyro_attention import (
    AttentionGuide,
    ContextualGammaPrior,
    ContextualLogNormalPrior,
    FixedGammaPrior,
    MultiheadAttention,
    Soft,
    Weibull,
)

BATCH, QUERIES, KEYS, HEADS, WIDTH = 3, 4, 5, 2, 8


def run(layer, *args, family=None, **kwargs):
    """One call under a guide, in a plate for the batch if there is one."""

    def model():
        if args[0].dim() == 2:
            return layer(*args, **kwargs)
        with pyro.plate("batch", args[0].size(0)):
            return layer(*args, **kwargs)

    return AttentionGuide(model, Soft() if family is None else family).run().output


def pair(**options):
    """A torch layer with weights of a trained one, and its copy."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    return theirs, MultiheadAttention.from_torch(theirs)


def inputs(batch=(BATCH,), queries=QUERIES, keys=KEYS, kdim=WIDTH, vdim=WIDTH):
    return torch.randn(*batch, queries, WIDTH), torch.randn(*batch, keys, kdim), torch.randn(*batch, keys, vdim)


def compare(theirs, mine, tensors, **arguments):
    """Outputs, averaged and per-head weights."""
    for average in (True, False):
        expected = theirs(*tensors, average_attn_weights=average, **arguments)
        output = run(mine, *tensors, average_attn_weights=average, **arguments)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def boolean(*shape):
    """True = ignore; nobody ignores the first key."""
    mask = torch.rand(*shape) < 0.4
    mask[..., 0] = False
    return mask


ATTENTION_MASKS = {
    "none": lambda: None,
    "bool2d": lambda: boolean(QUERIES, KEYS),
    "bool3d": lambda: boolean(BATCH * HEADS, QUERIES, KEYS),
    "float2d": lambda: torch.randn(QUERIES, KEYS),
    "float3d": lambda: torch.randn(BATCH * HEADS, QUERIES, KEYS),
    "float_with_inf": lambda: torch.randn(QUERIES, KEYS).masked_fill(boolean(QUERIES, KEYS), float("-inf")),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", ATTENTION_MASKS)
# torch asks that both masks be of one type; boolean padding beside a float mask still works
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask is deprecated")
def test_masks(kind, padded):
    padding = boolean(BATCH, KEYS) if padded else None
    compare(*pair(), inputs(), attn_mask=ATTENTION_MASKS[kind](), key_padding_mask=padding)


@pytest.mark.parametrize("padded", [False, True])
def test_causal(padded):
    tensors = inputs(keys=QUERIES)
    padding = torch.tensor([[False] * 4, [False, False, True, True], [False, True, True, True]]) if padded else None
    theirs, mine = pair()
    mask = nn.Transformer.generate_square_subsequent_mask(QUERIES) == float("-inf")
    expected = theirs(*tensors, attn_mask=mask, key_padding_mask=padding)
    output = run(mine, *tensors, is_causal=True, key_padding_mask=padding)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    compare(theirs, mine, tensors, attn_mask=mask, key_padding_mask=padding, is_causal=True)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kdim", "vdim"), [(6, 3), (None, 3), (6, None)])
def test_widths_of_keys_and_values(bias, kdim, vdim):
    theirs, mine = pair(bias=bias, kdim=kdim, vdim=vdim)
    assert (mine.q_proj.bias is not None) == bias
    compare(theirs, mine, inputs(kdim=kdim or WIDTH, vdim=vdim or WIDTH))


@pytest.mark.parametrize("kind", ["none", "bool2d", "float2d"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask is deprecated")
def test_unbatched(kind, padded):
    padding = boolean(KEYS) if padded else None
    compare(*pair(), inputs(batch=()), attn_mask=ATTENTION_MASKS[kind](), key_padding_mask=padding)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3), queries=st.integers(1, 5), keys=st.integers(1, 5), heads=st.integers(1, 4),
    width=st.integers(1, 3), bias=st.booleans(), padded=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_sizes(batch, queries, keys, heads, width, bias, padded, seed):
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(heads * width, heads, bias=bias, batch_first=True)
    tensors = [torch.randn(batch, length, heads * width) for length in (queries, keys, keys)]
    padding = boolean(batch, keys) if padded else None
    compare(theirs, MultiheadAttention.from_torch(theirs), tensors, key_padding_mask=padding)


def test_gradients():
    theirs, mine = pair()
    tensors = [tensor.requires_grad_() for tensor in inputs()]
    expected = torch.autograd.grad(theirs(*tensors)[0].square().sum(), tensors)
    torch.testing.assert_close(torch.autograd.grad(run(mine, *tensors)[0].square().sum(), tensors), expected)


@pytest.mark.parametrize("arguments", [(), ("attn_mask",), ("key_padding_mask",), ("attn_mask", "key_padding_mask")])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 4, 5), (2, 0, 5), (2, 4, 0), (0, 0, 0)])
def test_nothing_at_all(batch, queries, keys, arguments):
    """Torch takes an empty batch, and keys or queries that are none."""
    masks = {"attn_mask": torch.zeros(queries, keys).bool(), "key_padding_mask": torch.zeros(batch, keys).bool()}
    theirs, mine = pair()
    tensors, masks = inputs((batch,), queries, keys), {name: masks[name] for name in arguments}
    expected, output = theirs(*tensors, **masks), mine(*tensors, **masks)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_several_batch_dimensions():
    theirs, mine = pair()
    query, key, value = inputs(batch=(2, BATCH))
    padding, mask = boolean(2, BATCH, KEYS), boolean(2, BATCH, HEADS, QUERIES, KEYS)

    def model():
        with pyro.plate("outer", 2, dim=-2), pyro.plate("batch", BATCH, dim=-1):
            return mine(query, key, value, key_padding_mask=padding, attn_mask=mask)

    context, weights = AttentionGuide(model, Soft()).run().output
    assert weights.shape == (2, BATCH, QUERIES, KEYS)
    for i in range(2):
        flat = mask[i].flatten(0, 1)
        expected = theirs(query[i], key[i], value[i], key_padding_mask=padding[i], attn_mask=flat)
        torch.testing.assert_close(context[i], expected[0], rtol=1e-5, atol=1e-6)


def test_dropout_only_in_training_mode():
    theirs, mine = pair(dropout=0.5)
    tensors = inputs()
    assert run(mine, *tensors, need_weights=False)[1] is None
    assert not run(mine, *tensors)[0].allclose(run(mine, *tensors)[0])
    dropped = run(mine, *tensors, average_attn_weights=False)[1] == 0
    assert 0.3 < dropped.float().mean() < 0.7  # as in torch, the weights that made the context
    theirs.eval(), mine.eval()
    compare(theirs, mine, tensors)


@pytest.mark.parametrize("training", [True, False])
def test_the_copy_keeps_the_mode(training):
    assert MultiheadAttention.from_torch(pair()[0].train(training)).training == training


@pytest.mark.parametrize("prior", [ContextualGammaPrior(4, heads=2), FixedGammaPrior()], ids=["contextual", "fixed"])
@pytest.mark.parametrize("family", [Soft(), Weibull()], ids=str)
def test_fully_masked_rows_are_zero(prior, family):
    layer = MultiheadAttention(WIDTH, HEADS, prior=prior)
    tensors = [tensor.requires_grad_() for tensor in inputs()]
    mask = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = True
    padding = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padding[1] = True
    context, weights = run(layer, *tensors, attn_mask=mask, key_padding_mask=padding, family=family)
    assert (weights[:, 2] == 0).all()
    assert (weights[1] == 0).all()
    torch.testing.assert_close(weights[0, 0].sum(), torch.tensor(1.0))
    torch.testing.assert_close(context[1], layer.out_proj.bias.expand(QUERIES, -1))
    context.square().sum().backward()
    gradients = [tensor.grad for tensor in tensors]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[1] == 0).all() for gradient in gradients)


def prior_means(layer, x, **arguments):
    """Mean of the prior for every query and key, ``[H, M, N]``."""
    trace = pyro.poutine.trace(layer).get_trace(x, x, x, **arguments)
    prior = trace.nodes["attention"]["fn"]
    return prior.log_expected_weight.exp().expand(prior.full_shape)


@pytest.mark.parametrize("arguments", ["is_causal", "bool", "float"])
@pytest.mark.parametrize("prior", [ContextualGammaPrior(4), ContextualLogNormalPrior(4)], ids=["gamma", "lognormal"])
def test_causal_prior_does_not_leak_the_future(prior, arguments):
    """The prior of a query is a softmax over the keys it may see."""
    layer = MultiheadAttention(WIDTH, HEADS, prior=prior)
    future = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    arguments = {
        "is_causal": {"is_causal": True},
        "bool": {"attn_mask": future},
        "float": {"attn_mask": torch.zeros(KEYS, KEYS).masked_fill(future, float("-inf"))},
    }[arguments]
    x = torch.randn(KEYS, WIDTH)
    before = prior_means(layer, x, **arguments)
    changed = x.clone()
    changed[3] += 1
    after = prior_means(layer, changed, **arguments)
    assert torch.equal(before[:, :3][..., :3].tril(), after[:, :3][..., :3].tril())
    assert not before[:, 3, :4].allclose(after[:, 3, :4])
    # without the mask every query's prior moves
    assert not prior_means(layer, x)[:, 0].allclose(prior_means(layer, changed)[:, 0])


x = torch.zeros(BATCH, QUERIES, WIDTH)
wide = torch.zeros(BATCH, KEYS, WIDTH)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((x[..., 1:], wide, wide), {}, ValueError, r"query has shape \(3, 4, 7\), expected \[..., length, 8\]"),
        ((x, wide[..., 1:], wide), {}, ValueError, r"key has shape \(3, 5, 7\)"),
        ((x, wide, wide[..., 1:]), {}, ValueError, r"value has shape \(3, 5, 7\)"),
        ((x[0, 0], wide, wide), {}, ValueError, r"query has shape \(8,\)"),
        ((x, wide, x), {}, ValueError, "key has 5 positions and value 4, expected the same number"),
        ((x, wide, wide), {"attn_mask": torch.zeros(4, 5, dtype=torch.int64)}, TypeError, "attn_mask is of type"),
        ((x, wide, wide), {"attn_mask": boolean(4, 4)}, ValueError, "attn_mask|does not broadcast"),
        ((x, wide, wide), {"attn_mask": torch.zeros(4, 4)}, ValueError, "attn_mask|does not broadcast"),
        ((x, wide, wide), {"attn_mask": boolean(5, 4, 5)}, ValueError, "attn_mask"),
        (
            (x, wide, wide),
            {"attn_mask": boolean(8, 4, 5)},
            ValueError,
            r"\(8, 4, 5\), expected \(4, 5\) or \(6, 4, 5\)",
        ),
        ((x, wide, wide), {"key_padding_mask": torch.zeros(3, 5).int()}, TypeError, "key_padding_mask is of type"),
        ((x, wide, wide), {"query_padding_mask": torch.ones(3, 4)}, ValueError, "query_padding_mask has numbers"),
        (
            (x, wide, wide),
            {"key_padding_mask": [True]},
            TypeError,
            "key_padding_mask is of type list",
        ),
        ((x.long(), wide, wide), {}, TypeError, r"query is of type torch.int64, expected a floating-point tensor"),
        ((x, wide.tolist(), wide), {}, TypeError, "key is of type list, expected a floating-point tensor"),
        ((x, wide, None), {}, TypeError, "value is of type NoneType"),
        ((x, wide[:2], wide[:2]), {}, ValueError, r"batch dimensions \(3,\), \(2,\) and \(2,\), expected the same"),
        ((x, wide[:1], wide[:1]), {}, ValueError, r"batch dimensions \(3,\), \(1,\) and \(1,\), expected the same"),
        ((x, wide[0], wide[0]), {}, ValueError, r"batch dimensions \(3,\), \(\) and \(\), expected the same"),
        ((x[None], wide[:2], wide[:2]), {}, ValueError, r"batch dimensions \(1, 3\), \(2,\) and \(2,\)"),
        ((x, wide, wide), {"key_padding_mask": boolean(3, 4)}, ValueError, r"has shape \(3, 4\), expected \(3, 5\)"),
        ((x, wide, wide), {"key_padding_mask": boolean(2, 5)}, ValueError, r"has shape \(2, 5\), expected \(3, 5\)"),
    ],
)
def test_wrong_calls(args, kwargs, error, message):
    layer = MultiheadAttention(WIDTH, HEADS)
    with pytest.raises(error, match=message), pyro.plate("batch", BATCH):
        layer(*args, **kwargs)


@pytest.mark.parametrize("heads", [3, 0, -2])
def test_heads_that_do_not_divide_the_width(heads):
    with pytest.raises(ValueError, match=f"embed_dim 8 is not a multiple of num_heads {heads}"):
        MultiheadAttention(8, heads)


@pytest.mark.parametrize("options", [{"batch_first": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_layers_that_cannot_be_copied(options):
    layer = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options})
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"cannot copy a layer with .*{name}={options[name]}"):
        MultiheadAttention.from_torch(layer)


def test_the_copy_keeps_dtype_name_and_prior():
    prior = FixedGammaPrior()
    copy = MultiheadAttention.from_torch(pair()[0].double(), name="decoder.3", prior=prior)
    assert {parameter.dtype for parameter in copy.parameters()} == {torch.float64}
    assert (copy.attention.name, copy.attention.prior) == ("decoder.3", prior)
