"""Softmax over edges and sums along them, against a loop and PyTorch Geometric."""

import pytest
import torch
from torch_geometric.utils import softmax as pyg_softmax

from pyro_attention.ops.segment import Segments, segment_aggregate, segment_log_softmax, segment_softmax

INDEX = torch.tensor([3, 0, 0, 3, 1, 0, 3, 3])  # 2 and 4 are empty, 1 has one edge
SEGMENTS = Segments(INDEX, 5)
SOURCES = Segments(torch.tensor([0, 1, 2, 3, 3, 3, 1, 0]), 4)
MASKS = {
    "none": None,
    "edges": torch.tensor([True, False, True, True, False, True, False, True]).unsqueeze(-1),  # segment 1 is masked
    "heads": torch.tensor([[True, False]] * 4 + [[False, True]] * 4),
    "all": torch.zeros(1, 1, dtype=torch.bool),
}


def random(*shape):
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def looped_softmax(scores, mask):
    """One segment at a time, on the unmasked edges only."""
    weights = torch.zeros_like(scores)
    mask = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    for segment in range(5):
        for batch in range(scores.size(0)):
            for head in range(scores.size(2)):
                kept = (segment == INDEX) & mask[batch, :, head]
                weights[batch, kept, head] = scores[batch, kept, head].softmax(0)
    return weights


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_softmax_matches_a_loop(mask):
    scores = random(3, 8, 2)
    weights = segment_softmax(scores, SEGMENTS, mask=mask)
    expected = looped_softmax(scores.detach(), mask)
    torch.testing.assert_close(weights, expected)
    assert torch.equal(weights == 0, expected == 0)
    log_weights = segment_log_softmax(scores, SEGMENTS, mask=mask)
    torch.testing.assert_close(log_weights, expected.log().where(expected > 0, 0))


def test_softmax_matches_torch_geometric():
    scores = random(8, 2)
    weights = segment_softmax(scores, SEGMENTS)
    expected = pyg_softmax(scores, INDEX, num_nodes=5)
    torch.testing.assert_close(weights, expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(
        *(torch.autograd.grad((w * w).sum(), scores, retain_graph=True)[0] for w in (weights, expected)),
        atol=1e-12,
        rtol=1e-12,
    )


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("function", [segment_softmax, segment_log_softmax])
def test_softmax_gradient(function, mask):
    scores = random(3, 8, 2)
    assert torch.autograd.gradcheck(lambda x: function(x, SEGMENTS, mask=mask), scores)
    result = function(scores, SEGMENTS, mask=mask)
    (gradient,) = torch.autograd.grad((result * torch.randn_like(result)).sum(), scores)
    if mask is not None:
        assert (gradient[~mask.expand(scores.shape)] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_softmax_of_large_scores(mask, dtype):
    scores = torch.tensor([1000.0, -1000, 1000, -1000, -1000, 0, 999, 1000], dtype=dtype)[:, None].expand(8, 2)
    scores = scores.clone().requires_grad_()
    weights = segment_softmax(scores, SEGMENTS, mask=mask)
    log_weights = segment_log_softmax(scores, SEGMENTS, mask=mask)
    torch.testing.assert_close(weights, looped_softmax(scores.detach()[None], mask)[0])
    kept = torch.ones(8, 2, dtype=torch.bool) if mask is None else mask.expand(8, 2)
    assert log_weights.isfinite().all()
    torch.testing.assert_close(log_weights.exp()[kept], weights[kept])
    (gradient,) = torch.autograd.grad((weights + log_weights).square().sum(), scores)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("function", [segment_softmax, segment_log_softmax])
def test_softmax_ignores_masked_scores_and_leaves_its_input_alone(function, mask):
    scores = random(8, 2).detach()
    kept = torch.ones(1, dtype=torch.bool) if mask is None else mask
    extreme = scores.masked_fill(~kept, torch.finfo(torch.float64).max)
    before = extreme.clone()
    assert torch.equal(function(scores, SEGMENTS, mask=mask), function(extreme, SEGMENTS, mask=mask))
    assert torch.equal(extreme, before)


EMPTY = Segments(torch.empty(0, dtype=torch.int64), 5)


@pytest.mark.parametrize(
    ("reduce", "shape"),
    [
        (lambda x: segment_softmax(x, EMPTY), (3, 0, 2)),
        (lambda x: segment_log_softmax(x, EMPTY), (3, 0, 2)),
        (lambda x: segment_aggregate(x, torch.ones(3, 5, 2, 4), sources=EMPTY, targets=EMPTY), (3, 5, 2, 4)),
    ],
    ids=["softmax", "log_softmax", "aggregate"],
)
def test_no_edges(reduce, shape):
    assert torch.equal(reduce(torch.empty(3, 0, 2)), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(8, 2), (2, 3, 8, 2)])
def test_sum_and_maximum(shape):
    values = random(*shape).detach()
    parts = [values[..., segment == INDEX, :] for segment in range(5)]
    torch.testing.assert_close(SEGMENTS.sum(values), torch.stack([part.sum(-2) for part in parts], -2))
    lowest = torch.full((*shape[:-2], 1, shape[-1]), -torch.inf, dtype=values.dtype)
    highest = torch.stack([torch.cat([part, lowest], -2).amax(-2) for part in parts], -2)
    assert torch.equal(SEGMENTS.max(values), highest)
    for spread in (SEGMENTS.gather(highest), SEGMENTS.spread(highest)):
        assert torch.equal(spread, highest[..., INDEX, :])


@pytest.mark.parametrize(("function", "rows"), [(SEGMENTS.spread, 5), (SEGMENTS.sum, 8)], ids=["spread", "sum"])
def test_derivatives_of_spreading_and_summing(function, rows):
    assert torch.autograd.gradcheck(function, random(3, rows, 2))
    assert torch.autograd.gradgradcheck(lambda x: function(x).square(), random(3, rows, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_dtype_is_kept(dtype):
    values = torch.randn(8, 2).to(dtype)
    assert SEGMENTS.sum(values).dtype == dtype
    assert segment_softmax(values, SEGMENTS).dtype == dtype
    torch.testing.assert_close(SEGMENTS.sum(values).double(), SEGMENTS.sum(values.double()), atol=1e-2, rtol=1e-2)


# Leading dimensions of weights and values: the same, and each broadcast to the other.
@pytest.mark.parametrize(
    ("weight_batch", "value_batch"), [((), ()), ((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((3,), (1,))]
)
@pytest.mark.parametrize("value_heads", [2, 1])
def test_aggregate(weight_batch, value_batch, value_heads):
    weights, values = random(*weight_batch, 8, 2), random(*value_batch, 4, value_heads, 3)
    out = segment_aggregate(weights, values, sources=SOURCES, targets=SEGMENTS)
    expected = torch.zeros_like(out)
    for edge, (source, target) in enumerate(zip(SOURCES.index.tolist(), INDEX.tolist(), strict=True)):
        expected[..., target, :, :] += weights[..., edge, :, None] * values[..., source, :, :]
    torch.testing.assert_close(out, expected)
    assert torch.autograd.gradcheck(
        lambda w, v: segment_aggregate(w, v, sources=SOURCES, targets=SEGMENTS), (weights, values)
    )


@pytest.mark.parametrize("frozen", ["weights", "values"])
def test_aggregate_with_one_gradient(frozen):
    """Each half of the backward pass alone gives what both give together."""
    inputs = {"weights": random(8, 2), "values": random(4, 2, 3)}
    cotangent = torch.randn(5, 2, 3, dtype=torch.float64)

    def loss(weights, values):
        return (segment_aggregate(weights, values, sources=SOURCES, targets=SEGMENTS) * cotangent).sum()

    both = dict(zip(inputs, torch.autograd.grad(loss(**inputs), list(inputs.values())), strict=True))
    (trained,) = inputs.keys() - {frozen}
    (alone,) = torch.autograd.grad(loss(**(inputs | {frozen: inputs[frozen].detach()})), inputs[trained])
    torch.testing.assert_close(alone, both[trained])


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("function", [segment_softmax, segment_log_softmax])
def test_second_derivative_of_a_softmax(function, mask):
    assert torch.autograd.gradgradcheck(lambda x: function(x, SEGMENTS, mask=mask), random(3, 8, 2))


@pytest.mark.parametrize(("weight_batch", "value_batch"), [((), ()), ((3,), ()), ((), (3,))])
@pytest.mark.parametrize("value_heads", [2, 1])
def test_second_derivative_of_an_aggregate(weight_batch, value_batch, value_heads):
    inputs = random(*weight_batch, 8, 2), random(*value_batch, 4, value_heads, 3)
    assert torch.autograd.gradgradcheck(lambda w, v: segment_aggregate(w, v, sources=SOURCES, targets=SEGMENTS), inputs)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("function", [segment_softmax, segment_log_softmax])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_softmax_inside_vmap(function, mask, scale):
    scores = scale * random(3, 8, 2).detach()
    expected = function(scores, SEGMENTS, mask=mask)
    torch.testing.assert_close(torch.func.vmap(lambda x: function(x, SEGMENTS, mask=mask))(scores), expected)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("value_heads", [2, 1])
def test_sums_inside_vmap(in_dims, value_heads):
    def function(weights, values):
        return segment_aggregate(weights, values, sources=SOURCES, targets=SEGMENTS)

    inputs = random(3, 8, 2).detach(), random(3, 4, value_heads, 3).detach()
    inputs = [x if dim == 0 else x[0] for x, dim in zip(inputs, in_dims, strict=True)]
    torch.testing.assert_close(torch.func.vmap(function, in_dims)(*inputs), function(*inputs))
    scores = random(3, 8, 2).detach()
    torch.testing.assert_close(torch.func.vmap(SEGMENTS.sum)(scores), SEGMENTS.sum(scores))
