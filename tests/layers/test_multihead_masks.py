"""Which masks MultiheadAttention takes, and what it makes of them: torch's layer is the oracle."""

import pyro
import pytest
import torch

from pyro_attention import AttentionELBO, AttentionGuide, DoublyNormalized, MultiheadAttention, Weibull
from pyro_attention.blocked import BlockedMultiheadAttention
from tests.layers.test_multihead import HEADS, WIDTH, boolean, inputs, pair, run

QUERIES, KEYS = 4, 5
DTYPES = [torch.bool, torch.float32, torch.int64, torch.uint8]
BATCHES = [(), (1,), (2,), (3,), (4,)]
ATTENTION_SHAPES = [(*front, 4, keys) for front in [(), (1,), (2,), (3,), (4,), (6,), (8,)] for keys in (5, 1)]
ATTENTION_SHAPES += [(5,), (1, 5), (5, 4), (1, 1), (1, 1, 4, 5), (5, 2, 4, 5), (2, 1, 4, 5), (3, 1, 4, 5)]
PADDING_SHAPES = [(5,), (1,), (4,), (1, 5), (2, 5), (3, 5), (4, 5), (3, 1), (3, 4), (5, 3), (1, 3, 5), (3, 1, 5), ()]


def make_mask(shape, dtype):
    """A mask in torch's sense that never ignores the first key."""
    ignored = torch.rand(shape) < 0.4
    if shape:
        ignored[..., 0] = False
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=dtype).masked_fill(ignored, -torch.inf)
    return ignored.to(dtype)


def outcome(layer, tensors, arguments):
    """Context and weights, or None where the layer refuses."""
    try:
        return layer(*tensors, **arguments)
    except (ValueError, TypeError, RuntimeError, AssertionError):
        return None


def same(arguments, batch):
    """Whether torch takes the masks; the results are then the same, else both refuse, mine by name."""
    theirs, mine = pair()
    tensors = inputs(batch, QUERIES, KEYS)
    expected, actual = outcome(theirs, tensors, arguments), outcome(mine, tensors, arguments)
    if expected is None:
        with pytest.raises((ValueError, TypeError), match="|".join(arguments)):
            mine(*tensors, **arguments)
        return False
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    return True


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_masks(batch, dtype):
    """Every shape that torch takes and many that it refuses."""
    taken = [shape for shape in ATTENTION_SHAPES if same({"attn_mask": make_mask(shape, dtype)}, batch)]
    supported = dtype in (torch.bool, torch.float32)
    rows = HEADS * (batch[0] if batch else 1)
    assert taken == ([(4, 5), (rows, 4, 5)] if supported else [])


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_masks(batch, dtype):
    taken = [shape for shape in PADDING_SHAPES if same({"key_padding_mask": make_mask(shape, dtype)}, batch)]
    assert taken == ([(*batch, 5)] if dtype in (torch.bool, torch.float32) else [])


@pytest.mark.parametrize("other", [torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [(), (3 * HEADS,)], ids=["2d", "3d"])
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask is deprecated")
def test_both_masks(dtype, other, rows):
    masks = {"attn_mask": make_mask((*rows, QUERIES, KEYS), dtype), "key_padding_mask": make_mask((3, KEYS), other)}
    assert same(masks, (3,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_float_masks_of_another_precision(dtype):
    """Torch refuses some of them; the numbers are those of the scores' precision."""
    _, mine = pair()
    tensors, mask = inputs((3,), QUERIES, KEYS), torch.randn(QUERIES, KEYS).to(dtype)
    expected = run(mine, *tensors, attn_mask=mask.float())[0]
    torch.testing.assert_close(run(mine, *tensors, attn_mask=mask)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [-torch.inf, -1e9, torch.finfo(torch.float32).min, -1e4])
def test_numbers_that_people_write_for_minus_infinity(number):
    """As scores they would enter the KL."""
    layer, x = MultiheadAttention(WIDTH, HEADS), torch.randn(2, 5, WIDTH)
    ignored = torch.arange(5) >= torch.tensor([[5], [3]])

    def kl(mask):
        def model():
            with pyro.plate("batch", 2):
                layer(x, x, x, mask)

        elbo = AttentionELBO()
        elbo.loss(model, AttentionGuide(model, Weibull()))
        return elbo.kl_record["attention"]

    floats = torch.zeros(2, 5).masked_fill(ignored, number)
    torch.testing.assert_close(kl(floats), kl(ignored))
    assert torch.equal(layer(x, x, x, floats)[0], layer(x, x, x, ignored)[0])


def test_masks_with_batch_and_heads_apart():
    _, mine = pair()
    tensors, mask = inputs((3,), QUERIES, KEYS), boolean(3, HEADS, QUERIES, KEYS)
    apart, flat = (run(mine, *tensors, attn_mask=m)[1] for m in (mask, mask.flatten(0, 1)))
    assert torch.equal(apart, flat)


def test_masks_without_the_dimension_of_particles():
    """Vectorised particles put a dimension in front of the queries of all layers but the first."""
    _, mine = pair()
    query, key, value = inputs((7, 3), QUERIES, KEYS)
    masks = {"attn_mask": boolean(3 * HEADS, QUERIES, KEYS), "key_padding_mask": boolean(3, KEYS)}
    together = mine(query, key[0], value[0], **masks)
    for i in range(7):
        alone = mine(query[i], key[0], value[0], **masks)
        torch.testing.assert_close(together[1][i], alone[1])


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("name", "shape"), [("attn_mask", (4, 5)), ("key_padding_mask", (3, 5)), ("query_padding_mask", (3, 4))]
)
def test_masks_that_are_not_finite(name, shape, number):
    mask = torch.zeros(shape)
    mask[1, 2] = number
    with pytest.raises(ValueError, match=f"{name} is NaN or infinite in 1 of {mask.numel()} entries, expected numbers"):
        pair()[1](*inputs((3,), QUERIES, KEYS), **{name: mask})


def test_a_learned_float_mask_gets_a_gradient():
    theirs, mine = (layer.double() for layer in pair())
    tensors = [tensor.double() for tensor in inputs((3,), QUERIES, KEYS)]
    mask = torch.randn(QUERIES, KEYS, dtype=torch.float64, requires_grad=True)
    gradients = [torch.autograd.grad(out.square().sum(), mask) for out in
                 (theirs(*tensors, attn_mask=mask)[0], mine(*tensors, attn_mask=mask)[0])]  # fmt: skip
    torch.testing.assert_close(*gradients)


def test_padded_queries_in_float_masks():
    layer, x = MultiheadAttention(WIDTH, HEADS, normalizer=DoublyNormalized()), torch.randn(3, 5, WIDTH)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    floats = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
    outputs = [run(layer, x, x, x, mask, query_padding_mask=mask) for mask in (padding, floats)]
    assert torch.equal(outputs[0][1], outputs[1][1])


@pytest.mark.parametrize("implementation", ["blocked", "auto"])
def test_float_padding_in_blocks(implementation, monkeypatch):
    """Of 0 and -inf it is as good as boolean; other numbers would need the scores."""
    monkeypatch.setattr("pyro_attention.blocked.choice._MANY_WEIGHTS", 1)
    layer, x = BlockedMultiheadAttention(WIDTH, HEADS, implementation=implementation), torch.randn(3, 5, WIDTH)
    padding = torch.arange(5) >= torch.tensor([[5], [3], [2]])
    floats = torch.zeros(3, 5).masked_fill(padding, -torch.inf)
    contexts = [layer(x, x, x, mask, need_weights=False)[0] for mask in (padding, floats)]
    assert torch.equal(*contexts)
    numbers = floats + 1
    if implementation == "blocked":
        with pytest.raises(ValueError, match="does not support a key_padding_mask with numbers other than 0 and -inf"):
            layer(x, x, x, numbers, need_weights=False)
        return
    with pytest.warns(UserWarning, match="keeps a large call dense.*numbers other than 0 and -inf"):
        dense = layer(x, x, x, numbers, need_weights=False)[0]
    torch.testing.assert_close(dense, contexts[0], rtol=1e-5, atol=1e-6)  # the same number at every key cancels


def test_without_validation_nan_is_not_taken_for_a_mask():
    with pyro.validation_enabled(False):
        context = pair()[1](*inputs((3,), QUERIES, KEYS), attn_mask=torch.full((4, 5), torch.nan))[0]
    assert context.isnan().all()
