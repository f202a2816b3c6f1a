"""Softmax over edges and sums along them, against a loop and PyTorch Geometric, with first and second derivatives."""

import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_geometric.utils import softmax as pyg_softmax

from pyro_attention.ops import segment as module
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
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
both = pytest.mark.parametrize("function", [segment_softmax, segment_log_softmax])


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def aggregate(weights, values, *, sources=SOURCES, targets=SEGMENTS):
    return segment_aggregate(weights, values, sources=sources, targets=targets)


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


@every_mask
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_softmax_matches_a_loop(mask, scale):
    scores = (scale * random(3, 8, 2)).detach().requires_grad_()
    before, expected = scores.detach().clone(), looped_softmax(scores.detach(), mask)
    weights, log_weights = (
        segment_softmax(scores, SEGMENTS, mask=mask),
        segment_log_softmax(scores, SEGMENTS, mask=mask),
    )
    torch.testing.assert_close(weights, expected)
    kept = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    assert torch.equal(weights == 0, ~kept | (expected == 0))
    assert log_weights.isfinite().all()
    torch.testing.assert_close(log_weights.exp().where(kept, 0), expected)
    assert (log_weights[~kept] == 0).all()
    (gradient,) = torch.autograd.grad((weights + log_weights).square().sum(), scores)
    assert gradient.isfinite().all()
    assert (gradient[~kept] == 0).all()
    assert torch.equal(scores, before)


def test_softmax_matches_torch_geometric():
    scores = random(8, 2)
    found = segment_softmax(scores, SEGMENTS), pyg_softmax(scores, INDEX, num_nodes=5)
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*(torch.autograd.grad((w * w).sum(), scores, retain_graph=True)[0] for w in found))
    far = torch.tensor([-30.0, 0, 0, -31, -9, 0, -30, -30]).half().unsqueeze(-1)  # whose exponentials would be 0
    torch.testing.assert_close(segment_softmax(far, SEGMENTS), pyg_softmax(far.float(), INDEX, num_nodes=5).half())


@every_mask
@both
def test_derivatives_of_a_softmax(function, mask):
    inputs = random(2, 8, 2)
    assert gradcheck(lambda x: function(x, SEGMENTS, mask=mask), inputs)
    assert gradgradcheck(lambda x: function(x, SEGMENTS, mask=mask), inputs, fast_mode=True)


@every_mask
@both
def test_softmax_inside_vmap(function, mask):
    scores = 1000 * random(3, 8, 2).detach()
    expected = function(scores, SEGMENTS, mask=mask)
    torch.testing.assert_close(torch.func.vmap(lambda x: function(x, SEGMENTS, mask=mask))(scores), expected)


@pytest.mark.parametrize("shape", [(8, 2), (2, 3, 8, 2)])
def test_sum_maximum_and_spread(shape):
    values = random(*shape).detach()
    parts = [values[..., segment == INDEX, :] for segment in range(5)]
    totals = torch.stack([part.sum(-2) for part in parts], -2)
    torch.testing.assert_close(SEGMENTS.sum(values), totals)
    least = values.new_full((*shape[:-2], shape[-1]), -torch.inf)
    highest = [part.amax(-2) if part.size(-2) else least for part in parts]
    assert torch.equal(SEGMENTS.max(values), torch.stack(highest, -2))
    assert torch.equal(SEGMENTS.spread(totals), totals[..., INDEX, :])


@pytest.mark.parametrize(("function", "rows"), [(SEGMENTS.spread, 5), (SEGMENTS.sum, 8)], ids=["spread", "sum"])
def test_derivatives_of_spreading_and_summing(function, rows):
    assert gradcheck(function, random(3, rows, 2))
    assert gradgradcheck(lambda x: function(x).square(), random(3, rows, 2), fast_mode=True)


# Leading dimensions of weights and values: none, where a product of sparse matrices does it, the same, or broadcast.
@pytest.mark.parametrize(
    ("weight_batch", "value_batch", "value_heads"),
    [((), (), 2), ((), (), 1), ((3,), (3,), 2), ((3,), (), 1), ((2, 1), (1, 3), 2), ((3,), (1,), 2)],
)
def test_aggregate(weight_batch, value_batch, value_heads):
    weights, values = random(*weight_batch, 8, 2), random(*value_batch, 4, value_heads, 3)
    out = aggregate(weights, values)
    expected = torch.zeros_like(out)
    for edge, (source, target) in enumerate(zip(SOURCES.index.tolist(), INDEX.tolist(), strict=True)):
        expected[..., target, :, :] += weights[..., edge, :, None] * values[..., source, :, :]
    torch.testing.assert_close(out, expected)
    assert gradcheck(aggregate, (weights, values))
    assert gradgradcheck(aggregate, (weights, values), fast_mode=True)
    for constant in (0, 1):  # each half of the backward pass alone
        inputs = [x.detach().requires_grad_(i != constant) for i, x in enumerate((weights, values))]
        assert gradcheck(aggregate, inputs, fast_mode=True)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
def test_sums_inside_vmap(in_dims):
    inputs = random(3, 8, 2).detach(), random(3, 4, 2, 3).detach()
    inputs = [x if dim == 0 else x[0] for x, dim in zip(inputs, in_dims, strict=True)]
    torch.testing.assert_close(torch.func.vmap(aggregate, in_dims)(*inputs), aggregate(*inputs))
    scores = inputs[0].expand(3, 8, 2)
    torch.testing.assert_close(torch.func.vmap(SEGMENTS.sum)(scores), SEGMENTS.sum(scores))


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 7), (2, 8), (4, 16)])
def test_products_of_sparse_matrices_are_the_sums(heads, width):
    """In single precision, for widths that fill a vector and others; the gradient of a sum is expanded."""
    weights, values = random(8, heads, dtype=torch.float32), random(4, heads, width, dtype=torch.float32)
    results = []
    for function in (aggregate, lambda w, v: aggregate(w.unsqueeze(0), v)[0]):
        out = function(weights, values)
        results.append((out, *torch.autograd.grad(out.sum(), (weights, values))))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("edges", "targets", "sources"), [(2, 1, 1), (9, 2, 2), (50, 3, 2)])
def test_more_edges_than_the_matrix_has_places(edges, targets, sources):
    ends = {
        name: Segments(torch.randint(size, (edges,)), size)
        for name, size in (("targets", targets), ("sources", sources))
    }
    assert gradcheck(lambda w, v: aggregate(w, v, **ends), [random(edges, 2), random(sources, 2, 3)])


def test_one_target_with_two_sets_of_sources_and_copies():
    weights, values = random(8, 2), random(4, 2, 3)
    reverse = Segments(SOURCES.index.flip(0), 4)
    first, other, again = (aggregate(weights, values, sources=sources) for sources in (SOURCES, reverse, SOURCES))
    assert torch.equal(first, again)
    messages = (weights.unsqueeze(-1) * values[reverse.index]).flatten(1)
    torch.testing.assert_close(other, SEGMENTS.sum(messages).view_as(other))
    for copied in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        assert torch.equal(aggregate(weights, values, sources=copied(SOURCES), targets=copied(SEGMENTS)), first)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0, 2)])
def test_no_edges(shape):
    empty, x, values = Segments(torch.empty(0, dtype=torch.int64), 5), random(*shape), random(5, 2, 4)
    assert segment_softmax(x, empty).shape == segment_log_softmax(x, empty).shape == shape
    out = aggregate(x, values, sources=empty, targets=empty)
    assert torch.equal(out, torch.zeros(*shape[:-2], 5, 2, 4, dtype=torch.float64))
    assert torch.autograd.grad(out.sum(), values)[0].count_nonzero() == 0


@pytest.mark.parametrize("case", ["batch", "half precision", "autocast"])
def test_products_leave_the_rest_to_sums_over_segments(case, monkeypatch):
    weights, values = random(8, 2, dtype=torch.float32), random(4, 2, 3, dtype=torch.float32)
    expected = aggregate(weights, values)
    monkeypatch.setattr(module, "_head_product", None)
    if case == "batch":
        other = aggregate(weights.expand(4, 8, 2), values)[3]
    elif case == "half precision":
        other = aggregate(weights.bfloat16(), values.bfloat16()).float()
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other = aggregate(weights, values).float()
    torch.testing.assert_close(other, expected, atol=5e-2, rtol=5e-2)
