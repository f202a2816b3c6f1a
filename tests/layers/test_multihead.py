"""MultiheadAttention under Soft() is torch.nn.MultiheadAttention, with every mask that torch takes."""

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pyro_attention import (
    AttentionELBO,
    AttentionGuide,
    ContextualGammaPrior,
    DoublyNormalized,
    MultiheadAttention,
    Soft,
    Weibull,
)
from pyro_attention.families.lognormal import ContextualLogNormalPrior

BATCH, QUERIES, KEYS, HEADS, WIDTH = 3, 4, 5, 2, 8
mismatched = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask is deprecated")


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


def assert_same(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


def compare(theirs, mine, tensors, **arguments):
    """Outputs, averaged and per-head weights."""
    for average in (True, False):
        expected = theirs(*tensors, average_attn_weights=average, **arguments)
        assert_same(run(mine, *tensors, average_attn_weights=average, **arguments), expected)


def make_mask(shape, dtype=torch.bool):
    """A mask in torch's sense that never ignores the first key."""
    ignored = torch.rand(shape) < 0.4
    if shape:
        ignored[..., 0] = False
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype).masked_fill(ignored, -torch.inf)
    return ignored.to(dtype)


@pytest.mark.parametrize("rows", [(), (BATCH * HEADS,)], ids=["2d", "3d"])
@pytest.mark.parametrize(
    ("dtype", "padding"), [(torch.bool, torch.bool), (torch.float32, torch.bool), (torch.float32, torch.float32)]
)
@mismatched
def test_masks(dtype, padding, rows):
    masks = {
        "attn_mask": make_mask((*rows, QUERIES, KEYS), dtype),
        "key_padding_mask": make_mask((BATCH, KEYS), padding),
    }
    compare(*pair(), inputs(), **masks)


@pytest.mark.parametrize("padded", [False, True])
def test_causal(padded):
    tensors = inputs(keys=QUERIES)
    padding = torch.tensor([[False] * 4, [False, False, True, True], [False, True, True, True]]) if padded else None
    theirs, mine = pair()
    mask = nn.Transformer.generate_square_subsequent_mask(QUERIES) == float("-inf")
    expected = theirs(*tensors, attn_mask=mask, key_padding_mask=padding)
    assert_same(run(mine, *tensors, is_causal=True, key_padding_mask=padding), expected)
    if not padded:  # as torch's, query i sees the keys 0 .. i, however many keys there are
        for keys in (QUERIES - 1, QUERIES + 2):
            tensors, later = inputs(keys=keys), torch.ones(QUERIES, keys, dtype=torch.bool).triu(1)
            assert_same(run(mine, *tensors, is_causal=True), theirs(*tensors, attn_mask=later))


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(0, 3), queries=st.integers(1, 5), keys=st.integers(1, 5), heads=st.integers(1, 4),
    width=st.integers(1, 3), kdim=st.sampled_from([None, 6]), vdim=st.sampled_from([None, 3]), bias=st.booleans(),
    padded=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
def test_sizes(batch, queries, keys, heads, width, kdim, vdim, bias, padded, seed):
    """Without a batch where it is zero."""
    torch.manual_seed(seed)
    size, batch = heads * width, (batch,) if batch else ()
    theirs = nn.MultiheadAttention(size, heads, bias=bias, kdim=kdim, vdim=vdim, batch_first=True)
    shapes = (queries, size), (keys, kdim or size), (keys, vdim or size)
    padding = make_mask((*batch, keys)) if padded else None
    tensors = [torch.randn(*batch, *shape) for shape in shapes]
    compare(theirs, MultiheadAttention.from_torch(theirs), tensors, key_padding_mask=padding)


def test_gradients_also_of_a_learned_mask():
    theirs, mine = (layer.double() for layer in pair())
    leaves = [tensor.double().requires_grad_() for tensor in (*inputs(), torch.randn(QUERIES, KEYS))]
    outputs = theirs(*leaves[:3], attn_mask=leaves[3])[0], run(mine, *leaves[:3], attn_mask=leaves[3])[0]
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), leaves) for out in outputs))


def test_several_batch_dimensions():
    """Vectorised particles put one in front of the queries of all layers but the first, and of no mask."""
    theirs, mine = pair()
    query, key, value = inputs(batch=(2, BATCH))
    padding, mask = make_mask((2, BATCH, KEYS)), make_mask((2, BATCH, HEADS, QUERIES, KEYS))

    def model():
        with pyro.plate("outer", 2, dim=-2), pyro.plate("batch", BATCH, dim=-1):
            return mine(query, key, value, key_padding_mask=padding, attn_mask=mask)

    context, _ = AttentionGuide(model, Soft()).run().output
    shared = mine(query, key[0], value[0], padding[0], attn_mask=mask[0].flatten(0, 1))[0]
    for i in range(2):
        arguments = {"key_padding_mask": padding[i], "attn_mask": mask[i].flatten(0, 1)}
        assert_same(context[i], theirs(query[i], key[i], value[i], **arguments)[0])
        arguments = {"key_padding_mask": padding[0], "attn_mask": mask[0].flatten(0, 1)}
        assert_same(shared[i], theirs(query[i], key[0], value[0], **arguments)[0])


def test_dropout_only_in_training_mode():
    theirs, mine = pair(dropout=0.5)
    tensors = inputs()
    assert run(mine, *tensors, need_weights=False)[1] is None
    dropped = run(mine, *tensors, average_attn_weights=False)[1] == 0
    assert 0.3 < dropped.float().mean() < 0.7  # as in torch, the weights that made the context
    theirs.eval(), mine.eval()
    compare(theirs, mine, tensors)


@pytest.mark.parametrize("prior", [ContextualGammaPrior(4), ContextualLogNormalPrior(4)], ids=["gamma", "lognormal"])
@pytest.mark.parametrize("form", ["is_causal", "attn_mask"])
def test_causal_prior_does_not_leak_the_future(prior, form):
    """The prior of a query is a softmax over the keys it may see."""
    layer, future = MultiheadAttention(WIDTH, HEADS, prior=prior), torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    arguments, x = {form: True if form == "is_causal" else future}, torch.randn(KEYS, WIDTH)

    def means(x, **arguments):
        """Mean of the prior for every query and key, ``[H, M, N]``."""
        prior = pyro.poutine.trace(layer).get_trace(x, x, x, **arguments).nodes["attention"]["fn"]
        return prior.log_expected_weight.exp().expand(prior.full_shape)

    changed = x.clone()
    changed[3] += 1
    before, after = means(x, **arguments), means(changed, **arguments)
    assert torch.equal(before[:, :3][..., :3].tril(), after[:, :3][..., :3].tril())
    assert not before[:, 3, :4].allclose(after[:, 3, :4])
    # without the mask every query's prior moves
    assert not means(x)[:, 0].allclose(means(changed)[:, 0])


# which masks there are


ATTENTION_SHAPES = [(*front, 4, keys) for front in [(), (1,), (2,), (3,), (6,), (8,)] for keys in (5, 1)]
ATTENTION_SHAPES += [(5,), (1, 5), (5, 4), (1, 1, 4, 5), (2, 1, 4, 5), (3, 1, 4, 5)]
PADDING_SHAPES = [(5,), (1,), (4,), (1, 5), (2, 5), (3, 5), (4, 5), (3, 1), (3, 4), (5, 3), (3, 1, 5), ()]


@pytest.mark.parametrize("batch", [(), (1,), (3,)], ids=str)
@pytest.mark.parametrize("name", ["attn_mask", "key_padding_mask"])
def test_shapes_and_types_of_masks(name, batch):
    """Those that torch takes give the same, those that it refuses are refused by name."""
    (theirs, mine), tensors, taken = pair(), inputs(batch), []
    for shape in ATTENTION_SHAPES if name == "attn_mask" else PADDING_SHAPES:
        for dtype in (torch.bool, torch.float32, torch.int64):
            mask = {name: make_mask(shape, dtype)}
            try:
                expected = theirs(*tensors, **mask)
            except (ValueError, TypeError, RuntimeError, AssertionError):
                with pytest.raises((ValueError, TypeError), match=name):
                    mine(*tensors, **mask)
                continue
            assert_same(mine(*tensors, **mask), expected)
            taken.append((shape, dtype))
    rows = HEADS * (batch[0] if batch else 1)
    shapes = [(4, 5), (rows, 4, 5)] if name == "attn_mask" else [(*batch, 5)]
    assert taken == [(shape, dtype) for shape in shapes for dtype in (torch.bool, torch.float32)]


@pytest.mark.parametrize("number", [-torch.inf, -1e9, -1e4])
def test_numbers_that_people_write_for_minus_infinity(number):
    """As scores they would enter the KL; of padded queries they would take weight from others."""
    layer, x = MultiheadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    doubly = MultiheadAttention(WIDTH, HEADS, normalizer=DoublyNormalized())
    ignored, results = torch.arange(5) >= torch.tensor([[5], [3]]), []

    def model(mask):
        with pyro.plate("batch", 2):
            layer(x, x, x, mask)

    for mask in (torch.zeros(2, 5).masked_fill(ignored, number), ignored):
        elbo = AttentionELBO()
        elbo.loss(model, AttentionGuide(model, Weibull()), mask)
        results.append([elbo.kl_record["attention"], layer(x, x, x, mask)[0]])
        results[-1].append(run(doubly, x, x, x, mask, query_padding_mask=mask)[1])
    torch.testing.assert_close(*results)


# what is refused


x = torch.zeros(BATCH, QUERIES, WIDTH)
wide = torch.zeros(BATCH, KEYS, WIDTH)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "message"),
    [
        ((x[..., 1:], wide, wide), {}, ValueError, r"query has shape \(3, 4, 7\), expected \[..., length, 8\]"),
        ((x, wide, x), {}, ValueError, r"shapes .*\(3, 5, 8\), \(3, 4, 8\), expected .* as many values as keys"),
        ((x, wide[:1], wide[:1]), {}, ValueError, r"shapes .*, expected the same batch dimensions"),
        ((x.long(), wide, wide), {}, TypeError, "query is of type torch.int64, expected a floating-point tensor"),
        ((x, wide, wide), {"query_padding_mask": torch.ones(3, 4)}, ValueError, "query_padding_mask has numbers"),
    ],
)
def test_wrong_calls(args, kwargs, error, message):
    layer = MultiheadAttention(WIDTH, HEADS)
    with pytest.raises(error, match=message), pyro.plate("batch", BATCH):
        layer(*args, **kwargs)
    with pytest.raises(ValueError, match="embed_dim 8 is not a multiple of num_heads 3"):
        MultiheadAttention(8, 3)


@pytest.mark.parametrize("options", [{"batch_first": False}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_layers_that_cannot_be_copied(options):
    layer = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **options})
    name = next(iter(options))
    with pytest.raises(ValueError, match=f"cannot copy a layer with .*{name}={options[name]}"):
        MultiheadAttention.from_torch(layer)
