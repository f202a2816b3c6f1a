"""Weighted sums along edges as products of sparse matrices, against a loop and the sums over segments."""

import copy
import pickle

import pytest
import torch

from pyro_attention.ops import segment
from pyro_attention.ops.head_product import head_product
from pyro_attention.ops.segment import Segments, segment_aggregate

# Segments without edges on both sides, and two edges with the same ends.
TARGETS = Segments(torch.tensor([3, 0, 0, 3, 1, 0, 3, 3]), 5)
SOURCES = Segments(torch.tensor([0, 1, 2, 3, 3, 3, 1, 0]), 6)


def random(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def looped(weights, values):
    rows = []
    for target in range(TARGETS.count):
        edges = (target == TARGETS.index).nonzero().flatten().tolist()
        terms = [weights[edge, :, None] * values[SOURCES.index[edge]] for edge in edges]
        rows.append(torch.stack(terms).sum(0) if terms else torch.zeros_like(values[0]))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 7), (2, 8), (4, 16)])
def test_value_and_gradients(heads, width, dtype):
    weights, values = random(8, heads, dtype=dtype), random(6, heads, width, dtype=dtype)
    grad = torch.randn(5, heads, width, dtype=dtype)
    results = []
    for function in (lambda w, v: head_product(w, v, sources=SOURCES, targets=TARGETS), looped):
        out = function(weights, values)
        results.append((out, *torch.autograd.grad(out, (weights, values), grad)))
    assert results[0][0].dtype == dtype
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("constant", [None, 0, 1], ids=["both", "values", "weights"])
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck], ids=["first", "second"])
def test_derivatives(check, constant):
    inputs = [random(8, 2), random(6, 2, 3)]
    if constant is not None:
        inputs[constant].requires_grad_(False)
    assert check(lambda w, v: head_product(w, v, sources=SOURCES, targets=TARGETS), inputs)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("edges", "targets", "sources"), [(2, 1, 1), (9, 1, 2), (9, 2, 2), (50, 3, 2)])
def test_more_edges_than_the_matrix_has_places(edges, targets, sources, heads):
    ends = {
        name: Segments(torch.randint(size, (edges,)), size)
        for name, size in (("targets", targets), ("sources", sources))
    }
    inputs = [random(edges, heads), random(sources, heads, 3)]
    assert torch.autograd.gradcheck(lambda w, v: head_product(w, v, **ends), inputs)


def test_gradient_that_is_expanded():
    """As that of a sum, whose gradient has no memory of its own."""
    weights, values = random(8, 2), random(6, 2, 3)
    (gradient,) = torch.autograd.grad(head_product(weights, values, sources=SOURCES, targets=TARGETS).sum(), weights)
    torch.testing.assert_close(gradient, values.sum(-1)[SOURCES.index])


def test_one_target_with_two_sets_of_sources():
    weights, values = random(8, 2), random(6, 2, 3)
    reverse = Segments(SOURCES.index.flip(0), 6)
    first, other, again = (
        head_product(weights, values, sources=sources, targets=TARGETS) for sources in (SOURCES, reverse, SOURCES)
    )
    torch.testing.assert_close(first, again)
    torch.testing.assert_close(
        other, TARGETS.sum((weights.unsqueeze(-1) * values[reverse.index]).flatten(1)).view_as(other)
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_segments_are_copied_after_use(copied):
    weights, values = random(8, 2), random(6, 2, 3)
    before = head_product(weights, values, sources=SOURCES, targets=TARGETS)
    after = head_product(weights, values, sources=copied(SOURCES), targets=copied(TARGETS))
    assert torch.equal(before, after)


def test_no_edges():
    empty = Segments(torch.empty(0, dtype=torch.int64), 5)
    weights, values = random(0, 2), random(5, 2, 3)
    out = head_product(weights, values, sources=empty, targets=empty)
    assert torch.equal(out, torch.zeros(5, 2, 3, dtype=torch.float64))
    assert [g.abs().sum() for g in torch.autograd.grad(out.sum(), (weights, values))] == [0, 0]


@pytest.mark.parametrize("case", ["batch", "half precision", "autocast"])
def test_aggregate_leaves_the_rest_to_sums_over_segments(case, monkeypatch):
    calls = []
    monkeypatch.setattr(
        segment, "head_product", lambda *args, **kwargs: calls.append(args) or head_product(*args, **kwargs)
    )
    weights, values = random(8, 2, dtype=torch.float32), random(6, 2, 3, dtype=torch.float32)
    ends = {"sources": SOURCES, "targets": TARGETS}
    expected = segment_aggregate(weights, values, **ends)
    assert len(calls) == 1
    if case == "batch":
        other = segment_aggregate(weights.expand(4, 8, 2), values, **ends)[3]
    elif case == "half precision":
        other = segment_aggregate(weights.bfloat16(), values.bfloat16(), **ends).float()
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other = segment_aggregate(weights, values, **ends).float()
    assert len(calls) == 1
    torch.testing.assert_close(other, expected, atol=5e-2, rtol=5e-2)
