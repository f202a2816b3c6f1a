"""Chunked log probabilities and their gradients, by themselves and summed over alignments, against torch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from pyro_attention.ops import token_log_prob as module
from pyro_attention.ops.token_log_prob import chosen_slots, summed_token_log_prob, token_log_prob

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def problem(batch, token_shape, *, vocabulary=5, width=3, bias=True, dtype=torch.float64):
    """Features, weight, bias and tokens."""
    tensors = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((*batch, width), (vocabulary, width))]
    tensors.append(torch.randn(vocabulary, dtype=dtype, requires_grad=True) if bias else None)
    return *tensors, torch.randint(vocabulary, token_shape)


def reference(features, weight, bias, token):
    log_probs = linear(features, weight, bias).log_softmax(-1)
    shape = torch.broadcast_shapes(features.shape[:-1], token.shape)
    return log_probs.expand(*shape, -1).gather(-1, token.expand(shape).unsqueeze(-1)).squeeze(-1)


def with_gradients(log_prob, inputs, factors):
    """Value, and gradients of its weighted sum."""
    tensors = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    return log_prob, *torch.autograd.grad((log_prob * factors).sum(), tensors)


@st.composite
def broadcasting_shapes(draw):
    """Shapes of features (without width) and tokens that broadcast, and a number of rows in a chunk."""
    full = draw(st.lists(st.integers(0, 4), max_size=3))
    shapes = []
    for _ in range(2):
        ones = draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full)))
        shape = [1 if one else size for one, size in zip(ones, full, strict=True)]
        shapes.append(tuple(shape[draw(st.integers(0, len(shape))) :]))
    return *shapes, draw(st.sampled_from([1, 2, 3, 7, 100, None]))


@settings(max_examples=80, deadline=None)
@given(broadcasting_shapes(), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 2**31))
def test_equals_log_softmax(shapes, vocabulary, width, bias, seed):
    torch.manual_seed(seed)
    batch, token_shape, chunk_rows = shapes
    *inputs, token = problem(batch, token_shape, vocabulary=vocabulary, width=width, bias=bias)
    expected = reference(*inputs, token)
    actual = token_log_prob(inputs[0], inputs[1], token, inputs[2], chunk_rows=chunk_rows)
    assert actual.shape == torch.broadcast_shapes(batch, token_shape)
    factors = torch.randn(expected.shape, dtype=torch.float64)
    torch.testing.assert_close(
        with_gradients(actual, inputs, factors), with_gradients(expected, inputs, factors), **CLOSE
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits(size, dtype):
    x = torch.tensor([[1.0], [0.5]], dtype=dtype, requires_grad=True)
    w = torch.tensor([[size], [-size], [0.0]], dtype=dtype, requires_grad=True)
    token = torch.tensor([[0, 1], [1, 0], [2, 2]])
    values = token_log_prob(x, w, token, chunk_rows=1).double(), reference(x.double(), w.double(), None, token)
    assert (values[0] <= 0).all()
    torch.testing.assert_close(*(with_gradients(value, (x, w), torch.ones(())) for value in values))


def test_forbidden_tokens_have_no_probability_and_no_gradient():
    x, w, _, token = problem((4,), (4,))
    bias = torch.tensor([0.0, 0, -torch.inf, 0, 0], dtype=torch.float64)
    gradient = torch.autograd.grad(token_log_prob(x, w, token.masked_fill(token == 2, 1), bias).sum(), w)[0]
    assert (gradient[2] == 0).all()
    assert gradient.isfinite().all()
    assert (token_log_prob(x, w, torch.full((4,), 2), bias) == -torch.inf).all()


def test_rows_without_gradient_are_skipped(monkeypatch):
    """Padding costs nothing in the backward pass, whatever stands there."""
    x, w, b, token = problem((6,), (6,))
    kept = torch.tensor([True, False, True, False, False, True])
    with torch.no_grad():
        x[~kept] = torch.nan
    loss = token_log_prob(x, w, token, b, chunk_rows=2).where(kept, 0).sum()
    sizes, addmm = [], torch.addmm
    monkeypatch.setattr(torch, "addmm", lambda *args, **kw: sizes.append(len(args[1])) or addmm(*args, **kw))
    actual = torch.autograd.grad(loss, (x, w, b))
    assert sizes == [2, 1]
    expected = torch.autograd.grad(reference(x[kept], w, b, token[kept]).sum(), (x, w, b))
    torch.testing.assert_close((actual[0][kept], *actual[1:]), (expected[0][kept], *expected[1:]), **CLOSE)


def test_never_holds_more_than_a_chunk_of_logits():
    """No tensor of forward or backward, and nothing kept between them, is larger than a chunk."""
    x, w, b, token = problem((8, 10), (10,), vocabulary=50, dtype=torch.float32)
    kept, largest = [], 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest = max(largest, result.untyped_storage().nbytes())
            return result

    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.untyped_storage().nbytes()) or t, lambda t: t
    ):
        value = token_log_prob(x, w, token, b, chunk_rows=4)
    with Sizes():
        token_log_prob(x, w, token, b, chunk_rows=4).sum().backward()
        value.sum().backward()
    assert largest <= max(4 * 50, x.numel(), w.numel()) * 4
    # features, weight, bias, tokens not expanded over the 8, and one number a row
    assert sorted(kept) == sorted([4 * x.numel(), 4 * w.numel(), 4 * b.numel(), 8 * 10, 4 * 80])


def test_second_derivative_is_an_error():
    x, w, b, token = problem((3,), (3,))
    with pytest.raises(RuntimeError, match=r"differentiable once.*TokenLikelihood\.logits"):
        torch.autograd.grad(token_log_prob(x, w, token, b).sum(), x, create_graph=True)


@pytest.mark.parametrize(("mode", "tolerance"), [("inputs", 0.02), ("autocast", 0.02), ("mixed inputs", 0.005)])
def test_half_precision(mode, tolerance):
    """Products in half precision, the rest in float32: close to the exact value of the rounded inputs."""
    *inputs, token = problem((40, 7), (7,), vocabulary=50, width=16, dtype=torch.float32)
    inputs = [tensor.detach().bfloat16() for tensor in inputs]
    if mode != "inputs":
        inputs = [t if mode == "mixed inputs" and i == 0 else t.float() for i, t in enumerate(inputs)]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
        value = token_log_prob(inputs[0], inputs[1], token, inputs[2], chunk_rows=64)
        actual = with_gradients(value, inputs, torch.ones(()))  # an active autocast must not matter here
    assert value.dtype == torch.float32
    assert [g.dtype for g in actual[1:]] == [t.dtype for t in inputs]
    doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = with_gradients(reference(*doubles, token), doubles, torch.ones(()))
    for one, other in zip(actual, expected, strict=True):
        assert (one.double() - other).abs().max() / other.abs().max() < tolerance


# summed over alignments


def alignments(groups, size, *, share=0.7, vocabulary=6, dtype=torch.float64):
    """Features, weight, bias, tokens, slots and log weights; some alignments of a group are impossible."""
    slots, _ = chosen_slots(torch.rand(groups, size) < share)
    *inputs, _ = problem((len(slots),), (), vocabulary=vocabulary, dtype=dtype)
    return *inputs, torch.randint(vocabulary, (groups,))[slots // size], slots, torch.randn(groups, size, dtype=dtype)


def summed(log_prob, slots, log_weight, *, evidence):
    """One sum a group."""
    weight = log_weight.flatten()[slots]
    terms = log_prob + weight if evidence else log_prob * weight.exp()
    table = torch.full_like(log_weight, -1e30 if evidence else 0.0).flatten().index_copy(0, slots, terms)
    return table.view_as(log_weight).logsumexp(-1) if evidence else table.view_as(log_weight).sum(-1)


def both(inputs, *, evidence, weights=1.0, **options):
    """Value and gradients of the weighted sum of the groups that have a row: found and expected."""
    x, w, b, token, slots, log_weight = inputs
    filled = torch.zeros(len(log_weight), dtype=torch.bool).index_fill(0, slots // log_weight.size(1), True)
    ends = torch.bincount(slots // log_weight.size(1), minlength=len(log_weight)).cumsum(0).tolist()
    rows = {"slots": slots, "ends": ends, "log_weight": log_weight}
    found = summed_token_log_prob(x, w, token, b, evidence=evidence, **rows, **options)
    leaves = [tensor for tensor in (x, w, b) if tensor.requires_grad]
    for log_prob in (found, reference(x, w, b, token)):
        loss = (weights * summed(log_prob, slots, log_weight, evidence=evidence))[filled].sum()
        yield [log_prob, *torch.autograd.grad(loss, leaves, retain_graph=True)]


@pytest.fixture
def fallbacks(monkeypatch):
    """What was computed again in a backward pass."""
    calls, original = [], module._gradients
    monkeypatch.setattr(module, "_gradients", lambda *args: calls.append(args) or original(*args))
    return calls


@settings(max_examples=50, deadline=None)
@given(
    groups=st.integers(1, 6), size=st.integers(1, 5), share=st.sampled_from([0.0, 0.4, 1.0]), evidence=st.booleans(),
    chunk_rows=st.sampled_from([1, 3, 8, None]), factor=st.sampled_from([-1.0, 0.25]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_sums_equal_those_of_log_softmax(groups, size, share, evidence, chunk_rows, factor, seed):
    torch.manual_seed(seed)
    inputs = alignments(groups, size, share=share)
    torch.testing.assert_close(*both(inputs, evidence=evidence, weights=factor, chunk_rows=chunk_rows), **CLOSE)


@pytest.mark.parametrize("evidence", [True, False])
def test_logits_are_computed_once_and_again_where_they_are_used_otherwise(evidence, fallbacks, monkeypatch):
    rows, original = [], module._to_residuals
    monkeypatch.setattr(
        module, "_to_residuals", lambda logits, *args: rows.append(len(logits)) or original(logits, *args)
    )
    inputs = alignments(7, 4)
    torch.testing.assert_close(*both(inputs, evidence=evidence, weights=-1.0, chunk_rows=5), **CLOSE)
    assert sum(rows) == len(inputs[0])
    assert len(rows) > 1
    assert not fallbacks
    for needed in range(3):  # of one input alone; a weight for each sentence
        for index, tensor in enumerate(inputs[:3]):
            tensor.requires_grad_(index == needed)
        torch.testing.assert_close(*both(inputs, evidence=evidence, weights=torch.rand(7)), **CLOSE)
        assert len(fallbacks) == needed + 1


def test_rounding_is_not_taken_for_another_use(fallbacks):
    """Neither that of long sums nor of large scores, in single precision."""
    *inputs, log_weight = alignments(200, 40, dtype=torch.float32)
    for found, expected in zip(*both((*inputs, 10 * log_weight), evidence=True, weights=-1.0), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not fallbacks


@pytest.mark.parametrize("evidence", [True, False])
def test_roulette_changes_the_shares_of_the_gradient_alone(evidence, monkeypatch):
    seen, original = [], module._Groups.rounded
    monkeypatch.setattr(module._Groups, "rounded", lambda *args: seen.append((args[1], original(*args))) or seen[-1][1])
    x, w, b, token, slots, log_weight = alignments(6, 8)
    log_weight = (3 * log_weight).log_softmax(-1)
    ends = torch.bincount(slots // 8, minlength=6).cumsum(0).tolist()
    options = {"slots": slots, "ends": ends, "log_weight": log_weight, "evidence": evidence}
    found, expected = summed_token_log_prob(x, w, token, b, roulette=0.1, **options), reference(x, w, b, token)
    torch.testing.assert_close(found, expected, **CLOSE)
    ((shares, rounded),) = seen
    losses = summed(found, slots, log_weight, evidence=evidence), rounded * expected
    torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), (x, w, b)) for loss in losses), **CLOSE)
    assert rounded.count_nonzero() < 0.7 * len(slots)
    assert torch.equal(rounded[shares >= 0.1], shares[shares >= 0.1])


def test_roulette_is_unbiased():
    groups = module._Groups(torch.arange(4), [4], torch.zeros(1, 4), evidence=True, roulette=0.01, chunk_rows=4)
    shares, draws = torch.tensor([0.0, 0.001, 0.004, 0.995], dtype=torch.float64), 20_000
    rounded = groups.rounded(shares.expand(draws, -1))
    error = (shares * (0.01 - shares)).clamp(min=0).div(draws).sqrt()
    assert ((rounded.mean(0) - shares).abs() <= 4 * error + 1e-12).all()
